// Kafka's StandardAuthorizer over stdin: SET starts a set of ACLs, ACL adds one, ASK and ANY print 1 or 0.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

public class Authorizing {
    record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() { return "PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return ""; }
        public int correlationId() { return 0; }
    }

    static Context context(String principal, String host) throws Exception {
        String[] parts = principal.split(":", 2);
        return new Context(new KafkaPrincipal(parts[0], parts[1]), InetAddress.getByName(host));
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        StringBuilder answers = new StringBuilder();
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        StandardAuthorizer authorizer = null;
        Map<String, Object> configs = Map.of();
        String line;
        while ((line = lines.readLine()) != null) {
            String[] words = line.split("\t", -1);
            if (words[0].equals("SET")) {
                configs = Map.of("allow.everyone.if.no.acl.found", words[1], "super.users", words[2], "node.id", "1");
                acls = new HashMap<>();
                authorizer = null;
                continue;
            }
            if (words[0].equals("ACL")) {
                acls.put(Uuid.randomUuid(), new StandardAcl(ResourceType.valueOf(words[1]), words[2],
                    PatternType.valueOf(words[3]), words[4], words[5], AclOperation.valueOf(words[6]),
                    AclPermissionType.valueOf(words[7])));
                continue;
            }
            if (authorizer == null) {
                authorizer = new StandardAuthorizer();
                authorizer.configure(configs);
                authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
                authorizer.loadSnapshot(acls);
                authorizer.completeInitialLoad();
            }
            Context context = context(words[1], words[2]);
            AclOperation operation = AclOperation.valueOf(words[3]);
            ResourceType type = ResourceType.valueOf(words[4]);
            AuthorizationResult result = words[0].equals("ANY")
                ? authorizer.authorizeByResourceType(context, operation, type)
                : authorizer.authorize(context, List.of(new Action(operation,
                    new ResourcePattern(type, words[5], PatternType.LITERAL), 1, true, true))).get(0);
            answers.append(result == AuthorizationResult.ALLOWED ? '1' : '0');
        }
        System.out.println(answers);
    }
}

import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;

/** Prints the settings of Kafka's clients, as the clients themselves define them: client, name, type. */
public class ListClientSettings {
    public static void main(String[] args) {
        print("consumer", ConsumerConfig.configDef());
        print("producer", ProducerConfig.configDef());
        print("admin", AdminClientConfig.configDef());
    }

    private static void print(String client, ConfigDef definitions) {
        for (ConfigDef.ConfigKey key : definitions.configKeys().values()) {
            System.out.println(client + "\t" + key.name + "\t" + key.type);
        }
    }
}

// A transactional producer of Kafka's Java client that does what it is told, a line each, and says how it went.
// Run from its source: java -cp ... Transacting.java BOOTSTRAP TRANSACTIONAL_ID TIMEOUT_MS [SETTING=VALUE ...]

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transacting {
    private static KafkaProducer<String, String> producer;

    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("transactional.id", words[1]);
        settings.put("transaction.timeout.ms", words[2]);
        settings.put("linger.ms", "0");
        settings.put("max.block.ms", "20000");
        settings.put("retry.backoff.ms", "10");
        for (int i = 3; i < words.length; i++) {
            settings.put(words[i].substring(0, words[i].indexOf('=')), words[i].substring(words[i].indexOf('=') + 1));
        }
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = "ok " + work(line.split(" "));
            } catch (ExecutionException error) {
                answer = "error " + error.getCause();
            } catch (Exception error) {
                answer = "error " + error;
            }
            System.out.println(answer.replace('\n', ' '));
            System.out.flush();
        }
        producer.close(java.time.Duration.ZERO);
    }

    private static String work(String[] words) throws Exception {
        switch (words[0]) {
            case "init":
                producer.initTransactions();
                return "";
            case "begin":
                producer.beginTransaction();
                return "";
            case "commit":
                producer.commitTransaction();
                return "";
            case "abort":
                producer.abortTransaction();
                return "";
            case "send":
                return send(words[1], Integer.parseInt(words[2]), words);
            case "offsets":
                producer.sendOffsetsToTransaction(
                    Map.of(
                        new TopicPartition(words[2], Integer.parseInt(words[3])),
                        new OffsetAndMetadata(Long.parseLong(words[4]))),
                    new ConsumerGroupMetadata(words[1]));
                return "";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** The offsets that the client tells. */
    private static String send(String topic, int partition, String[] words) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int i = 3; i < words.length; i++) {
            sent.add(producer.send(new ProducerRecord<>(topic, partition, null, words[i])));
        }
        producer.flush();
        StringBuilder offsets = new StringBuilder();
        for (Future<RecordMetadata> one : sent) {
            offsets.append(one.get().hasOffset() ? one.get().offset() : "unknown").append(' ');
        }
        return offsets.toString().trim();
    }
}

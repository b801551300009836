// Workers of a share group of Kafka's Java client, each a thread, that say what they were answered.
// Run from its source: java -cp ... Sharing.java BOOTSTRAP GROUP TOPIC WORKERS [SETTING=VALUE ...]
// A record whose value ends with "poison" is released each time; others are accepted. Prints, a line each:
//   accepted VALUE      the broker has confirmed it
//   released VALUE N    the same, of a poison record in its Nth delivery
//   failed VALUE ERROR  it was answered with an error
// Ends with its standard input.

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Sharing {
    private static volatile boolean isOver;

    public static void main(String[] words) throws Exception {
        List<Thread> workers = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(words[3]); number++) {
            Thread worker = new Thread(() -> work(words));
            worker.start();
            workers.add(worker);
        }
        while (System.in.read() >= 0) {
        }
        isOver = true;
        for (Thread worker : workers) {
            worker.join();
        }
    }

    private static void work(String[] words) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("group.id", words[1]);
        settings.put("share.acknowledgement.mode", "explicit");
        for (int i = 4; i < words.length; i++) {
            settings.put(words[i].substring(0, words[i].indexOf('=')), words[i].substring(words[i].indexOf('=') + 1));
        }
        try (KafkaShareConsumer<String, String> consumer =
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(words[2]));
            while (!isOver) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                if (!records.isEmpty()) {
                    acknowledge(consumer, records);
                }
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    private static void acknowledge(KafkaShareConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        for (ConsumerRecord<String, String> one : records) {
            boolean isPoison = one.value().endsWith("poison");
            consumer.acknowledge(one, isPoison ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
        }
        Map<TopicIdPartition, Optional<KafkaException>> answers = consumer.commitSync();
        StringBuilder lines = new StringBuilder();
        for (ConsumerRecord<String, String> one : records) {
            Optional<KafkaException> error = Optional.empty();
            for (Map.Entry<TopicIdPartition, Optional<KafkaException>> answer : answers.entrySet()) {
                if (answer.getKey().topicPartition().equals(new TopicPartition(one.topic(), one.partition()))) {
                    error = answer.getValue();
                }
            }
            if (error.isPresent()) {
                lines.append("failed ").append(one.value()).append(' ').append(error.get()).append('\n');
            } else if (one.value().endsWith("poison")) {
                lines.append("released ").append(one.value()).append(' ').append(one.deliveryCount().get()).append('\n');
            } else {
                lines.append("accepted ").append(one.value()).append('\n');
            }
        }
        synchronized (System.out) {
            System.out.print(lines);
            System.out.flush();
        }
    }
}

// Kafka's producer or consumer, which does what it is told by lines, for a worker (tests/brokers/java.py).
// Run from its source: java -cp ... Working.java produce|consume TOPIC [SETTING=VALUE ...]
//
// produce: "PARTITION VALUE" is sent at once; answers come when they come: "NUMBER ok OFFSET", "NUMBER error ...",
//          NUMBER counting the lines from 0. At the end of its input it waits until all is answered.
// consume: "poll", "commit PARTITION:OFFSET ...", "committed PARTITION", "end"; the answer is, line by line,
//          "given PARTITION ...", "taken", "record PARTITION OFFSET VALUE", and at last "ok ..." or "error ...".

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Working {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final BufferedReader LINES =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        for (int i = 2; i < words.length; i++) {
            int at = words[i].indexOf('=');
            settings.put(words[i].substring(0, at), words[i].substring(at + 1));
        }
        if (words[0].equals("produce")) {
            produce(words[1], settings);
        } else {
            consume(words[1], settings);
        }
    }

    private static void say(String line) {
        System.out.println(line.replace('\n', ' '));
    }

    private static void produce(String topic, Properties settings) throws Exception {
        StringSerializer strings = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, strings, strings)) {
            long count = 0;
            for (String line = LINES.readLine(); line != null; line = LINES.readLine()) {
                int space = line.indexOf(' ');
                int partition = Integer.parseInt(line.substring(0, space));
                long number = count++;
                producer.send(
                    new ProducerRecord<>(topic, partition, null, line.substring(space + 1)),
                    (where, error) -> say(number + (error == null ? " ok " + where.offset() : " error " + error)));
            }
        }
    }

    private static void consume(String topic, Properties settings) throws Exception {
        StringDeserializer strings = new StringDeserializer();
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, strings, strings);
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> given) {
                say("given " + given.stream().map(one -> "" + one.partition()).collect(Collectors.joining(" ")));
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> taken) {
                say("taken");
            }
        });
        for (String line = LINES.readLine(); line != null; line = LINES.readLine()) {
            try {
                say("ok " + work(consumer, topic, line.split(" ")));
            } catch (Exception error) {
                say("error " + error);
            }
        }
    }

    private static String work(KafkaConsumer<String, String> consumer, String topic, String[] words) {
        switch (words[0]) {
            case "poll":
                for (ConsumerRecord<String, String> one : consumer.poll(POLL)) {
                    say("record " + one.partition() + " " + one.offset() + " " + one.value());
                }
                return "";
            case "commit":
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (int i = 1; i < words.length; i++) {
                    String[] place = words[i].split(":");
                    offsets.put(
                        new TopicPartition(topic, Integer.parseInt(place[0])),
                        new OffsetAndMetadata(Long.parseLong(place[1])));
                }
                consumer.commitSync(offsets);
                return "";
            case "committed":
                TopicPartition where = new TopicPartition(topic, Integer.parseInt(words[1]));
                OffsetAndMetadata found = consumer.committed(Set.of(where)).get(where);
                return found == null ? "" : "" + found.offset();
            case "end":
                consumer.close();
                return "";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }
}

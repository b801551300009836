package org.apache.spark.kafka010;

import java.util.HashMap;
import scala.Option;
import scala.collection.immutable.Map;
import scala.jdk.javaapi.CollectionConverters;

/** What Spark's Kafka connector asks of its module for delegation tokens, when there are none. */
public class KafkaConfigUpdater {
    private final HashMap<String, Object> settings;

    public KafkaConfigUpdater(String module, Map<String, Object> given) {
        settings = new HashMap<>(CollectionConverters.asJava(given));
    }

    public KafkaConfigUpdater set(String key, Object value) {
        settings.put(key, value);
        return this;
    }

    public KafkaConfigUpdater setIfUnset(String key, Object value) {
        settings.putIfAbsent(key, value);
        return this;
    }

    public KafkaConfigUpdater setAuthenticationConfigIfNeeded() {
        return this;
    }

    public KafkaConfigUpdater setAuthenticationConfigIfNeeded(Option<KafkaTokenClusterConf> cluster) {
        return this;
    }

    public java.util.Map<String, Object> build() {
        return settings;
    }
}

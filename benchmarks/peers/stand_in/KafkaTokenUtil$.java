package org.apache.spark.kafka010;

import java.util.Map;
import org.apache.spark.SparkConf;
import scala.Option;

/** Delegation tokens, of which there are none. */
public final class KafkaTokenUtil$ {
    public static final KafkaTokenUtil$ MODULE$ = new KafkaTokenUtil$();

    private KafkaTokenUtil$() {}

    public Option<KafkaTokenClusterConf> findMatchingTokenClusterConfig(SparkConf settings, String servers) {
        return Option.empty();
    }

    public boolean needTokenUpdate(Map<String, Object> settings, Option<KafkaTokenClusterConf> cluster) {
        return false;
    }
}

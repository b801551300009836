// A transactional producer of franz-go that does what it is told, a line each, and says how it went: as
// Transacting.java does. Arguments: BOOTSTRAP TRANSACTIONAL_ID TIMEOUT_MS
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	timeoutMs, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.TransactionalID(os.Args[2]),
		kgo.TransactionTimeout(time.Duration(timeoutMs)*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordDeliveryTimeout(20*time.Second),
	)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := work(client, strings.Fields(lines.Text()))
		if err != nil {
			fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("ok", answer)
		}
	}
}

func work(client *kgo.Client, words []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	switch words[0] {
	case "init":
		_, _, err := client.ProducerID(ctx)
		return "", err
	case "begin":
		return "", client.BeginTransaction()
	case "commit":
		return "", client.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		return "", client.EndTransaction(ctx, kgo.TryAbort)
	case "send":
		return send(ctx, client, words[1], words[2], words[3:])
	}
	return "", fmt.Errorf("unknown step %q", words[0])
}

// The offsets that the client tells.
func send(ctx context.Context, client *kgo.Client, topic, partition string, values []string) (string, error) {
	number, err := strconv.Atoi(partition)
	if err != nil {
		return "", err
	}
	var records []*kgo.Record
	for _, value := range values {
		records = append(records, &kgo.Record{Topic: topic, Partition: int32(number), Value: []byte(value)})
	}
	results := client.ProduceSync(ctx, records...)
	if err := results.FirstErr(); err != nil {
		return "", err
	}
	var offsets []string
	for _, one := range results {
		offsets = append(offsets, strconv.FormatInt(one.Record.Offset, 10))
	}
	return strings.Join(offsets, " "), nil
}

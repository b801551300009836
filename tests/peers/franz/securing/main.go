// franz-go over TLS: it writes values "0" to "99", reads them as a group, and prints how many came.
// Arguments: BOOTSTRAP CA-FILE MECHANISM USER SECRET TOPIC GROUP; the mechanism "SSL" is none.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const records = 100

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[6], os.Args[7], mechanism(os.Args[3], os.Args[4], os.Args[5])); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

func mechanism(name, user, secret string) sasl.Mechanism {
	switch name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: secret}.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: secret}.AsMechanism()
	}
	return nil
}

func run(bootstrap, file, topic, group string, mechanism sasl.Mechanism) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pem, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(pem)
	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.AllowAutoTopicCreation(),
		kgo.DialTLSConfig(&tls.Config{RootCAs: authorities}),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil { // else a refused login is asked for again until the end
		return err
	}
	for number := range records {
		one := &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(number))}
		if err := client.ProduceSync(ctx, one).FirstErr(); err != nil {
			return err
		}
	}
	read := 0
	for read < records {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(*kgo.Record) { read++ })
	}
	fmt.Println("read", read)
	return nil
}

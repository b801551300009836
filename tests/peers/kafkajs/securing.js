// kafkajs over TLS: it writes values "0" to "99", reads them as a group, and prints how many came.
// Arguments: BOOTSTRAP CA-FILE MECHANISM USER SECRET TOPIC GROUP; the mechanism "SSL" is none.
const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const RECORDS = 100
const [bootstrap, file, mechanism, username, secret, topic, groupId] = process.argv.slice(2)

function sasl() {
  if (mechanism === 'SSL') return undefined
  if (mechanism === 'OAUTHBEARER') {
    return { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: secret }) }
  }
  return { mechanism: mechanism.toLowerCase(), username, password: secret }
}

async function main() {
  const kafka = new Kafka({
    brokers: [bootstrap],
    ssl: { ca: [fs.readFileSync(file, 'utf-8')] },
    sasl: sasl(),
    logLevel: logLevel.NOTHING,
    retry: { retries: 2 },
  })
  const producer = kafka.producer()
  await producer.connect()
  const messages = Array.from({ length: RECORDS }, (_, number) => ({ value: String(number) }))
  await producer.send({ topic, messages })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  let read = 0
  await new Promise((resolve) => {
    consumer.run({
      eachMessage: async () => {
        read += 1
        if (read === RECORDS) resolve()
      },
    })
  })
  await consumer.disconnect()
  console.log('read', read)
}

main().catch((error) => {
  console.log('error', error.message)
  process.exit(1)
})

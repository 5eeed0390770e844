"""semel and Debezium beside each other: the same outbox table, the same Kafka, one after the other.

A backlog is written while nobody reads, and then each is started: how long until its first message, how
many a second after that. While it goes on to run, single transactions are committed at a steady rate: how
long from the INSERT to the broker's own time stamp. Memory is the most the process ever had. Debezium runs in
Kafka Connect, as its settings come and with settings for speed; both have the producer wait for all replicas.
"""

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from datetime import datetime

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

EVENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
SECONDS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
RATE = 1_000
PARTITIONS = 4
PATIENCE = 600

SERVER = os.environ["SEMEL_TEST_POSTGRES_URL"]
BROKERS = os.environ["SEMEL_TEST_KAFKA_BROKERS"]
PROGRAM = os.environ["SEMEL_BENCH_PROGRAM"]
JARS = os.environ["SEMEL_BENCH_JARS"]
DATABASE = "semel_debezium"
URL = SERVER.rsplit("/", 1)[0] + "/" + DATABASE
ADMIN = AdminClient({"bootstrap.servers": BROKERS})

FILL = """
create procedure fill(events integer) language plpgsql as $$ begin
    for start in 0..events - 1 by 1000 loop
        insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
        select 'order', (n % 10000)::text, 'OrderPlaced', '{"text":"' || repeat('x', 189) || '"}'
        from generate_series(start + 1, least(start + 1000, events)) n;
        commit;
    end loop;
end $$"""

ONE = """\\set account random(1, 10000)
insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
values ('order', :account::text, 'OrderPlaced', '{{"text":"{}"}}');
""".format("x" * 189)

WORKER = f"""
bootstrap.servers={BROKERS}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
header.converter=org.apache.kafka.connect.storage.SimpleHeaderConverter
offset.storage.file.filename={{folder}}/offsets
listeners=http://127.0.0.1:0
plugin.discovery=hybrid_warn
"""

CONNECTOR = """
name=outbox
connector.class=io.debezium.connector.postgresql.PostgresConnector
tasks.max=1
database.hostname={host}
database.port={port}
database.user={user}
database.password=none
database.dbname={database}
topic.prefix=debezium
plugin.name=pgoutput
slot.name=debezium
publication.name=debezium
publication.autocreate.mode=disabled
snapshot.mode=no_data
table.include.list=semel.outbox
transforms=outbox
transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
transforms.outbox.table.field.event.key=aggregate_id
transforms.outbox.table.field.event.type=event_type
transforms.outbox.table.fields.additional.placement=created_at:header:semel-created-at
transforms.outbox.route.by.field=aggregate_type
transforms.outbox.route.topic.replacement={topic}
"""

FOR_SPEED = """
poll.interval.ms=1
max.batch.size=8192
max.queue.size=32768
producer.override.linger.ms=1
producer.override.batch.size=262144
"""

SEMEL = f"""
[source.shop]
url = "{URL}"
mode = "auto"
{{source}}
[sink.kafka]
type = "kafka"
brokers = "{BROKERS}"
[pipeline.orders]
from = "shop"
to = "kafka"
topic = "{{topic}}"
"""


def sql(text, url=URL):
    command = ["psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1"]
    return subprocess.run([*command, url], input=text, text=True, check=True, capture_output=True).stdout


class Semel:
    def __init__(self, folder, topic, settings):
        config = folder / "semel.toml"
        config.write_text(SEMEL.format(topic=topic, source=settings))
        self.command = [PROGRAM, "relay", "--config", str(config)]


class Debezium:
    def __init__(self, folder, topic, settings):
        server = urllib.parse.urlparse(URL)
        worker, connector = folder / "worker.properties", folder / "connector.properties"
        policy = "connector.client.config.override.policy=All\n"
        worker.write_text(WORKER.format(folder=folder) + policy)
        connector.write_text(
            CONNECTOR.format(
                host=server.hostname,
                port=server.port,
                user=server.username,
                database=DATABASE,
                topic=topic,
            )
            + settings
        )
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        # As the scripts of Kafka start it.
        heap = ["-Xms256M", "-Xmx2G", "-XX:+UseG1GC"]
        self.command = ["java", *heap, quiet, "-cp", f"{JARS}/*", main, str(worker), str(connector)]
        sql(
            "create publication debezium for table semel.outbox with (publish = 'insert');"
            "select pg_create_logical_replication_slot('debezium', 'pgoutput')"
        )


def ends(consumer, topic):
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    return [consumer.get_watermark_offsets(each, timeout=10, cached=False)[1] for each in partitions]


def wait_for(consumer, topic, count, process, log):
    deadline = time.monotonic() + PATIENCE
    while (there := sum(ends(consumer, topic))) < count:
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{there} of {count} came; the log:\n{log.read_text()[-4000:]}")
        time.sleep(0.01)
    return there


def latencies(consumer, topic, since):
    consumer.assign([TopicPartition(topic, number, offset) for number, offset in enumerate(since)])
    result, expected = [], sum(ends(consumer, topic)) - sum(since)
    while len(result) < expected:
        for message in consumer.consume(10_000, timeout=10):
            header = dict(message.headers())["semel-created-at"].decode().strip('"')
            written = datetime.fromisoformat(header.replace("Z", "+00:00")).timestamp() * 1000
            result.append(message.timestamp()[1] - written)
    return sorted(result)


def measure(name, kind, settings):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="semel-debezium-"))
    topic = f"compared-{time.time_ns()}"
    try:
        return run(name, kind, settings, folder, topic)
    finally:
        ADMIN.delete_topics([topic])[topic].result()
        shutil.rmtree(folder)


def run(name, kind, settings, folder, topic):
    sql(f"drop database if exists {DATABASE} with (force)", SERVER)
    sql(f"create database {DATABASE}", SERVER)
    subprocess.run([PROGRAM, "migrate", "up", "--database", URL], check=True, capture_output=True)
    by_broker = {"message.timestamp.type": "LogAppendTime"}
    new = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1, config=by_broker)
    ADMIN.create_topics([new])[topic].result()
    consumer = Consumer({"bootstrap.servers": BROKERS, "group.id": topic, "enable.auto.commit": False})

    contender = kind(folder, topic, settings)
    sql(FILL)
    sql(f"call fill({EVENTS}); vacuum analyze semel.outbox; checkpoint")
    log = folder / "log"
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(contender.command, stdout=output, stderr=output)
    try:
        early = wait_for(consumer, topic, 1, process, log)
        first = time.monotonic()
        wait_for(consumer, topic, EVENTS, process, log)
        rate = (EVENTS - early) / (time.monotonic() - first)
        backlog_memory = memory(process)

        since = ends(consumer, topic)
        script = folder / "one.sql"
        script.write_text(ONE)
        load = ["pgbench", "-n", "-M", "prepared", "-c", "4", "-j", "1", "-R", str(RATE), "-T", str(SECONDS)]
        subprocess.run([*load, "-f", str(script), URL], check=True, capture_output=True)
        written = int(sql("select count(*) from semel.outbox"))
        wait_for(consumer, topic, written, process, log)
        took = latencies(consumer, topic, since)
        high = max(memory(process), backlog_memory)
    finally:
        process.terminate()
        process.wait()
        consumer.close()
        sql(f"drop database {DATABASE} with (force)", SERVER) if kind is Semel else forget()
    p50, p99 = statistics.median(took), took[len(took) * 99 // 100]
    print(
        f"| {name} | {first - began:.1f} s | {rate:,.0f} | {p50:.1f} ms | {p99:.1f} ms | {high:.0f} MiB |",
        flush=True,
    )
    return rate, high


def forget():
    sql("select pg_drop_replication_slot('debezium')")
    sql(f"drop database {DATABASE} with (force)", SERVER)


def memory(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


print(f"{EVENTS} events of 200 bytes; then {RATE} transactions a second for {SECONDS} s")
print("| | first message after | events/s | p50 | p99 | memory |\n|---|---|---|---|---|---|", flush=True)
plain = measure("Debezium", Debezium, "")
tuned = measure("Debezium, set for speed", Debezium, FOR_SPEED)
ours = measure("semel", Semel, "")
large = measure("semel, batches of 1000", Semel, "batch = 1000")
best, least = max(plain[0], tuned[0]), min(plain[1], tuned[1])
print(f"events/s against Debezium's best: {ours[0] / best:.1f}, {large[0] / best:.1f} (target 3)")
print(f"memory against Debezium's least: 1/{least / max(ours[1], large[1]):.0f} (target 1/10)")

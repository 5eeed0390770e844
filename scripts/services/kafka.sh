# shellcheck shell=bash
title="Java 17 or newer with Maven, and kcat"
variable=SEMEL_TEST_KAFKA_BROKERS
programs=("java:openjdk-21-jre-headless|openjdk-17-jre-headless" mvn:maven kcat:kcat)

# A change of the pom means other jars.
jars="$cache/kafka-$(cksum <"$root/scripts/kafka/pom.xml" | cut -d ' ' -f 1)"

have_java() {
  command -v java >/dev/null && (($(first_number "$(java -XX:-UsePerfData -version 2>&1 | head -n 1)") >= 17))
}

fetch() {
  [[ ! -d $jars ]] || return 0
  mvn --batch-mode --quiet -Dstyle.color=never --file "$root/scripts/kafka/pom.xml" \
    dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars.part.$$" &&
    mv --no-target-directory "$jars.part.$$" "$jars"
}

# What a test wants of a broker of its own: SEMEL_KAFKA_PROPERTIES is a file of settings, with {port} and
# {controller} for the ports; SEMEL_KAFKA_JVM are options of Java.
prepare() {
  local controller jvm quorum java=(java -cp "$jars/*" -XX:-UsePerfData -Djava.io.tmpdir="$dir"
    "-Dlog4j2.configurationFile=$root/scripts/kafka/log4j2.properties")
  controller=$(free_port)
  cat >server.properties <<CONFIG
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:$controller
log.dirs=$dir/data
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
CONFIG
  # What comes last counts.
  if [[ ${SEMEL_KAFKA_PROPERTIES:-} ]]; then
    sed "s/{port}/$port/g; s/{controller}/$controller/g" "$SEMEL_KAFKA_PROPERTIES" >>server.properties
  fi
  read -r -a jvm <<<"${SEMEL_KAFKA_JVM:-}"
  quorum=(--standalone --add-scram 'SCRAM-SHA-256=[name=scram,password=scram-secret]'
    --add-scram 'SCRAM-SHA-512=[name=scram,password=other-secret]')
  # It joins a cluster that has a controller.
  ! grep -qx 'process.roles=broker' server.properties || quorum=(--no-initial-controllers)
  "${java[@]}" "${jvm[@]}" kafka.tools.StorageTool format --config server.properties \
    --cluster-id c2VtZWwtdGVzdC1rYWZrYQ "${quorum[@]}"
  server=("${java[@]}" -Xms128m -Xmx512m "${jvm[@]}" kafka.Kafka server.properties)
}

ready() { kcat -L -b "$(url)" -m 5 | grep '^ [1-9][0-9]* brokers:'; }
url() { say "127.0.0.1:$port"; }

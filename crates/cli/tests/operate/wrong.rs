//! Wrong configurations, each with what the message must say for its reader to be able to mend it.

use std::fs;

use crate::shop::{Shop, all};

/// Where a line goes in the smallest configuration.
#[derive(Clone, Copy)]
enum In {
    /// Instead of the line `url = …` of `[source.orders]`.
    Url,
    /// Into `[source.orders]`.
    Source,
    /// Instead of the lines of `[sink.out]`.
    Sink,
    /// The same, but for the last line, which goes into `[pipeline.orders]`.
    Topic,
    /// Instead of `to = "out"` of `[pipeline.orders]`.
    To,
    /// Into `[pipeline.orders]`.
    Pipeline,
    /// At the end.
    End,
    /// Instead of everything.
    Whole,
    /// A variable of the environment.
    Variable,
}
use In::{End, Pipeline, Sink, Source, To, Topic, Url, Variable, Whole};

/// What is written, and how the message says to mend it.
const TABLE: &[(In, &str, &str)] = &[
    // sources
    (Url, "ulr = 'sqlite://shop.db'", "has no key \"ulr\"; did you mean \"url\"?"),
    (Url, "", "needs the key \"url\", or \"url_file\""),
    (Url, "url = 'oracle://db/shop'", "the URL must begin with sqlite://"),
    (Url, "url = '${NOT_SET}'", "NOT_SET is not set; set it, or write ${NOT_SET:-default}"),
    (Url, "url = 'sqlite://${FILE'", "a ${ without its }: write ${NAME}"),
    (Url, "url = 7", "url: must be a string, not an integer; put it in quotes"),
    (Url, "url_file = 'missing'", "write the secret into it, or name another"),
    (Source, "url_file = 'x'", "url_file: give it or \"url\", not both"),
    (Source, "poll_interval = 100", "must be a string, not an integer; write \"100ms\""),
    (Source, "poll_interval = '5ms'", "must be from 10ms to 1m"),
    (Source, "poll_interval = 'fast'", "\"fast\" is no span of time; write \"100ms\""),
    (Source, "batch = 0", "must be from 1 to 10000, not 0"),
    (Source, "batch = '100'", "must be a whole number, not a string; write digits, without quotes"),
    (Source, "notify = 'yes'", "must be true or false, not a string; write it without quotes"),
    (Source, "notify = true", "only PostgreSQL does; leave it out"),
    (Source, "mode = 'auot'", "did you mean \"auto\"?"),
    (
        Source,
        "mode = 'tail'",
        "only the outbox of PostgreSQL and of MySQL can be tailed; write \"auto\"",
    ),
    (Source, "table = 'outbox'", "say what its columns mean: columns = \"debezium\""),
    (Source, "columns = 'debezium'", "of which table? Give the key \"table\""),
    (Source, "schema = 'sales'", "of which table? Give the key \"table\""),
    (Source, "table = 'o'\ncolumns = 'debezum'", "did you mean \"debezium\"?"),
    (Source, "table = 'o'\ncolumns = { payloda = 'x' }", "did you mean \"payload\"?"),
    // sinks
    (Sink, "type = 'fiel'", "did you mean \"file\"?"),
    (Sink, "type = 'webhook'\nurl = 'http://example.com/a'", "set plain_http = true for http://"),
    (Sink, "type = 'webhook'\nurl = 'https://10.0.0.1/a'", "allow"),
    (Sink, "path = 'x'", "needs the key \"type\""),
    (Sink, "type = 'file'", "needs the key \"path\""),
    (Sink, "type = 'file'\npaht = 'x'", "did you mean \"path\"?"),
    (Sink, "type = 'file'\npath = 7", "path: must be a string, not an integer; put it in quotes"),
    (Sink, "type = 'webhook'\nurl = 'example.com/x'", "https://"),
    (Sink, "type = 'webhook'\nurl = 'https://example.com/x'\nsecret = 'abc'", "openssl rand"),
    (Sink, "type = 'webhook'\nurl = 'https://example.com/x'\nallow = ['all']", "10.20.0.0/16"),
    (
        Sink,
        "type = 'webhook'\nurl = 'https://example.com/x'\nformat = 'xml'",
        "there is plain, cloudevents",
    ),
    (
        Sink,
        "type = 'webhook'\nurl = 'https://example.com/x'\nconcurrency = 0",
        "must be from 1 to 1000",
    ),
    // pipelines
    (To, "", "needs the key \"to\""),
    (To, "to = 'oat'", "there is no [sink.oat]; did you mean \"out\"?"),
    (To, "to = []", "needs a sink: write the NAME of a [sink.NAME]"),
    (To, "to = ['out', 'out']", "\"out\" is there twice; name it once"),
    (Pipeline, "alert = 'ops'", "there is no [sink.ops]"),
    (Pipeline, "topic = '{aggregate}'", "write text with {aggregate_type}, {aggregate_id}"),
    (Pipeline, "topic = '{event_type|shout}'", "there are lower, upper, snake"),
    (Pipeline, "key = '{aggregate_id'", "write text with {aggregate_type}, {aggregate_id}"),
    (
        Pipeline,
        "headers = { tenant = 7 }",
        "tenant: must be a string, not an integer; put it in quotes",
    ),
    (Pipeline, "event_types = ['*Placed']", "a * may only stand at the end"),
    (Pipeline, "event_types = 'Order*'", "must be a list of strings, not a string; write [\"…\"]"),
    (Pipeline, "aggregate_types = []", "leave the key out for all"),
    (Pipeline, "routing = 'debezum'", "did you mean \"debezium\"?"),
    (Pipeline, "retry = 'webhok'", "did you mean \"webhook\"?"),
    (Pipeline, "retry = { schedule = ['1s'] }", "begin with \"0s\""),
    (Pipeline, "retry = { schedule = [] }", "such as [\"0s\", \"1s\", \"5s\"]"),
    (Pipeline, "retry = { attempts = 0 }", "must be from 1 to 1000, not 0"),
    (Pipeline, "retry = { on_dead = 'drop' }", "there is park, skip"),
    (Pipeline, "coordination = 'partitioned'", "write \"leader\""),
    (Pipeline, "coordination = 'leder'", "did you mean \"leader\"?"),
    (Pipeline, "shares = 4", "write coordination = \"partitioned\""),
    (Pipeline, "lease = '10m'", "must be from 1s to 5m"),
    (Pipeline, "form = 'orders'", "has no key \"form\"; did you mean \"from\"?"),
    // limits and retention
    (End, "[limits]\npayload = 1024", "write \"512KiB\", \"1MiB\" or \"1GB\""),
    (End, "[limits]\npayload = '1M'", "\"1M\" is no size; write \"512KiB\""),
    (End, "[limits]\npayload = '2GiB'", "must be from 1KiB to 1GiB"),
    (End, "[limits]\nin_flight_events = 0", "must be from 1 to 1000000, not 0"),
    (End, "[retention]\nkeep = 'a week'", "is no span of time; write \"100ms\", \"5s\" or \"3d\""),
    (End, "[retention]\nchunk = 0", "must be from 1 to 100000, not 0"),
    (End, "[retention]\ndelete = 'on_publish'\nkeep = '1d'", "leave one of them out"),
    // tests
    (End, "[test]\nname = 'x'", "write [[test]], for each one again"),
    (End, "[[test]]\nname = 'x'", "needs an event: { aggregate_type, aggregate_id, event_type }"),
    (End, "[[test]]\nname = 'x'\npipeline = 'order'", "did you mean \"orders\"?"),
    // the page
    (End, "[http]\nlisten = '9464'", "must be an address with a port, such as 127.0.0.1:9464"),
    (End, "[http]\nlisten = '0.0.0.0:9464'", "add [http.access.NAME] with role and token_file"),
    (
        End,
        "[http]\nlisten = '0.0.0.0:9464'\naccess = {}",
        "add [http.access.NAME] with role and token_file",
    ),
    (End, "[http.access.olga]\nrole = 'viewer'", "is needed: token_file, token or token_sha256"),
    (
        End,
        "[http.access.olga]\nrole = 'viewer'\ntoken = 'short'",
        "make one by openssl rand -hex 32",
    ),
    (End, "[http.access.olga]\nrole = 'viewr'\ntoken_file = 'x'", "did you mean \"viewer\"?"),
    // the proxy
    (End, "[proxy]\nlisten = '8080'", "must be an address with a port, such as 127.0.0.1:8080"),
    (End, "[proxy]\nscope = 'tenant'", "write \"header:Authorization\" or \"single-tenant\""),
    (End, "[proxy]\nupstreem = 'x'", "did you mean \"upstream\"?"),
    (End, "[proxy]\nupstream = 'ftp://shop:3000'", "write http://HOST:PORT or https://HOST:PORT"),
    (End, "[proxy]\nupstream = 'http://me:x@shop:3000'", "without a login or a path"),
    (End, "[proxy]\nadmin = '0.0.0.0:9090'", "choose an address such as 127.0.0.1:9090, or add"),
    (End, "[proxy]\ncertificate_file = 'c.pem'", "certificate_file: needs key_file beside it"),
    (End, "[proxy]\nkey_file = 'k.pem'", "key_file: needs certificate_file beside it"),
    (End, "[proxy]\nkey = 'ignored'", "write it in the [proxy.route.NAME] it is meant for"),
    // the whole
    (End, "[pipelin.other]", "there is no section \"pipelin\"; did you mean \"pipeline\"?"),
    (End, "[source.orders]\nurl = 'sqlite://b.db'", "duplicate key; keep one of the two"),
    (End, "[sink.x", "a line is [SECTION] or KEY = VALUE, with strings in quotes"),
    (Whole, "", "let `semel init` write the file"),
    (Whole, "sink = 'file'", "sink: must be a section, such as [sink]"),
    (Whole, "[sink]\ntype = 'file'", "must be a table, such as [sink.NAME]"),
    // the environment
    (Variable, "SEMEL_SINK__OUT__PAHT=x", "did you mean \"path\"?"),
    (Variable, "SEMEL_SINC__OUT__PATH=x", "did you mean \"sink\"?"),
    (Variable, "SEMEL_SINK____PATH=x", "must be named SEMEL_SECTION__NAME__KEY"),
    (
        Variable,
        "SEMEL_SOURCE__ORDERS__BATCH=many",
        "must be a whole number, not a string; write digits",
    ),
];

/// The same of the sinks that are brokers, in a program that has them.
#[rustfmt::skip]
const BROKERS: &[(In, &str, &str)] = if cfg!(feature = "full") { &[
    (Sink, "type = 'kafka'", "needs the key \"brokers\""),
    (Sink, "type = 'kafka'\nbrokers = 9092", "must be a string, not an integer; put it in quotes"),
    (Sink, "type = 'kafka'\nbrokers = 'kafka://b:9092'", "write them as kafka-1:9092,kafka-2:9092"),
    (Sink, "type = 'kafka'\nbrokers = 'b:9092'\nbroker = 'c:9092'", "did you mean \"brokers\"?"),
    (Sink, "type = 'kafka'\nbrokers = 'b:9092'\ncompression = 'zip'", "write one of none, gzip"),
    (Sink, "type = 'kafka'\nbrokers = 'b:9092'\ndelivery = 'once'", "there is at_least_once, exactly_once"),
    (Sink, "type = 'kafka'\nbrokers = 'b:9092'\nsasl = { mechanism = 'plain' }", "needs the key \"user\""),
    (Sink, "type = 'kafka'\nbrokers = 'b:9092'\nlinger = '1h'", "must be from 0s to 5m"),
    (Sink, "type = 'kafka'\nbrokers = 'b:9092'\ntimeout = '0s'", "must be from 100ms to 5m"),
    (Sink, "type = 'rabbitmq'\nurl = 'amqp://b'\ntimeout = '0s'", "must be from 100ms to 5m"),
    (Sink, "type = 'nats'\nurl = 'nats://b'\ntimeout = '0s'", "must be from 100ms to 5m"),
    (Sink, "type = 'mqtt'\nurl = 'mqtt://b'\ntimeout = '0s'", "must be from 100ms to 5m"),
    (Sink, "type = 'redis'\nurl = 'redis://b'\ntimeout = '0s'", "must be from 100ms to 5m"),
    (Sink, "type = 'eventbridge'\ntimeout = '0s'", "must be from 100ms to 5m"),
    (Sink, "type = 'webhook'\nurl = 'https://b'\ntimeout = '0s'", "must be from 100ms to 5m"),
    (Sink, "type = 'rabbitmq'", "needs the key \"url\", or \"url_file\""),
    (Sink, "type = 'rabbitmq'\nurl = 'http://b'", "write amqp://user:password@host:5672/vhost"),
    (Sink, "type = 'rabbitmq'\nurl = 'amqp://b'\ndeclare_exchange = 'topik'", "write topic, direct or fanout"),
    (Sink, "type = 'rabbitmq'\nurl = 'amqp://b'\ndeclare_queue = 'orders'", "must be a table, not a string; write { KEY = VALUE }"),
    (Sink, "type = 'rabbitmq'\nurl = 'amqp://b'\ndeclare_queue = { type = 'quorum' }", "needs the key \"name\""),
    (Sink, "type = 'nats'\nurl = 'amqp://b'", "write nats://user:password@host:4222"),
    (Sink, "type = 'nats'\nurl = 'nats://'", "write nats://user:password@host:4222"),
    (Sink, "type = 'nats'\nurl = 'nats://b'\ncreate_stream = { name = 'x' }", "needs a list such as [\"order.>\"]"),
    (Sink, "type = 'nats'\nurl = 'nats://b'\ncreate_stream = { name = 'x', subjects = ['x'], replicas = 9 }", "must be from 1 to 5, not 9"),
    (Sink, "type = 'nats'\nurl = 'nats://b'\nformat = 'json'", "there is plain, cloudevents"),
    (Sink, "type = 'redis'\nurl = 'localhost:6379'", "write redis://user:password@host:6379/0"),
    (Sink, "type = 'redis'\nurl = 'redis://b'\nmax_len = '1000'", "must be a whole number, not a string; write digits"),
    (Sink, "type = 'redis'\nurl = 'redis://b'\nmaxlen = 1000", "did you mean \"max_len\"?"),
    (Sink, "type = 'mqtt'\nurl = 'tcp://b'", "write mqtt://user:password@host:1883"),
    (Sink, "type = 'mqtt'\nurl = 'mqtt://b'\nversion = 4", "write 5, or 3 for MQTT 3.1.1"),
    (Sink, "type = 'mqtt'\nurl = 'mqtt://b'\nversion = 3\nformat = 'cloudevents-binary'", "use MQTT 5, or the format"),
    (Sink, "type = 'mqtt'\nurl = 'mqtt://b'\nretain = 'yes'", "must be true or false, not a string"),
    (Sink, "type = 'sqs'\naccess_key_id = 'A'", "needs secret_access_key beside it"),
    (Sink, "type = 'sqs'\nformat = 'cloudevents-binary'", "use plain or cloudevents-structured"),
    (Sink, "type = 'sns'\narn_prefx = 'arn:'", "did you mean \"arn_prefix\"?"),
    (Sink, "type = 'eventbridge'\nconcurrency = 0", "must be from 1 to 1000, not 0"),
    // halves of a login
    (Sink, "type = 'kafka'\nbrokers = 'b:9092'\ntls = { certificate_file = 'c.pem' }", "certificate_file: needs key_file beside it"),
    (Sink, "type = 'kafka'\nbrokers = 'b:9092'\ntls = { key_file = 'k.pem' }", "key_file: needs certificate_file beside it"),
    (Sink, "type = 'rabbitmq'\nurl = 'amqp://b'\nuser = 'shop'", "user: needs password beside it, and the other way round"),
    (Sink, "type = 'rabbitmq'\nurl = 'amqp://shop@b'\npassword = 'x'", "password: needs user beside it, and the other way round"),
    (Sink, "type = 'nats'\nurl = 'nats://b'\nuser = 'shop'", "user: needs password beside it"),
    (Sink, "type = 'nats'\nurl = 'nats://b'\npassword = 'x'", "password: needs user beside it"),
    (Sink, "type = 'mqtt'\nurl = 'mqtt://b'\nuser = 'shop'", "user: needs password beside it"),
    (Sink, "type = 'mqtt'\nurl = 'mqtt://b'\npassword = 'x'", "password: needs user beside it"),
    (Sink, "type = 'redis'\nurl = 'redis://b'\nuser = 'shop'", "user: needs password beside it"),
    (Sink, "type = 'redis'\nurl = 'redis://shop@b'\npassword = 'x'", "password: needs user beside it"),
    (Sink, "type = 'sqs'\nsecret_access_key = 'x'", "secret_access_key: needs access_key_id beside it"),
    (Sink, "type = 'sqs'\nsession_token = 'x'", "needs access_key_id and secret_access_key beside it"),
    // exactly once beside others
    (Whole, "[source.orders]\nurl = 'sqlite://shop.db'\n[sink.audit]\ntype = 'stdout'\n[sink.out]\ntype = 'kafka'\nbrokers = 'b:9092'\ndelivery = 'exactly_once'\n[pipeline.orders]\nfrom = 'orders'\nto = ['out', 'audit']", "write two pipelines, one of them to \"out\" alone"),
    // topics that can never be
    (Topic, "type = 'kafka'\nbrokers = 'b:9092'\ntopic = '.'", "Kafka keeps this name for itself; write another one"),
    (Topic, "type = 'kafka'\nbrokers = 'b:9092'\ntopic = '..'", "Kafka keeps this name for itself; write another one"),
    (Topic, "type = 'kafka'\nbrokers = 'b:9092'\ntopic = 'shop/{id}'", "cannot hold '/'; leave it out, or write a filter"),
    (Topic, "type = 'nats'\nurl = 'nats://b'\ntopic = 'a..b'", "write one dot between two words, and none at the ends"),
    (Topic, "type = 'nats'\nurl = 'nats://b'\ntopic = '.{event_type}'", "write one dot between two words, and none at the ends"),
    (Topic, "type = 'nats'\nurl = 'nats://b'\ntopic = '{event_type}.'", "write one dot between two words, and none at the ends"),
    (Topic, "type = 'nats'\nurl = 'nats://b'\ntopic = 'order.>'", "cannot hold '>'; leave it out"),
    (Topic, "type = 'nats'\nurl = 'nats://b'\ntopic = '$JS.{event_type}'", "which are the server's own; put a word before it"),
    (Topic, "type = 'nats'\nurl = 'nats://b'\ntopic = '_INBOX.a'", "which are the server's own; put a word before it"),
    (Topic, "type = 'mqtt'\nurl = 'mqtt://b'\ntopic = '$SYS/{event_type}'", "which is the broker's own; put a word before it"),
    (Topic, "type = 'mqtt'\nurl = 'mqtt://b'\ntopic = 'shop/+/a'", "cannot hold '+'; leave it out"),
    (Topic, "type = 'mqtt'\nurl = 'mqtt://b'\ntopic = 'shop/#'", "cannot hold '#'; leave it out"),
    (Sink, "type = 'sqs'", "set topic, such as \"{aggregate_type}-events\""),
    (Topic, "type = 'sqs'\ntopic = 'shop/orders'", "set topic, such as \"{aggregate_type}-events\""),
    (Sink, "type = 'sns'\narn_prefix = 'arn:aws:sns:eu-central-1:123456789012:'", "set topic, such as \"{aggregate_type}-events\""),
    (Sink, "type = 'sns'", "it is no ARN; set topic to a whole one, or arn_prefix = \"arn:aws:sns:REGION:ACCOUNT:\""),
    (Topic, "type = 'eventbridge'\ntopic = 'shop:{event_type}'", "a bus is named by at most 256 letters"),
    (Topic, "type = 'sns'\ntopic = 'orders'", "it is no ARN; set topic to a whole one, or arn_prefix = \"arn:aws:sns:REGION:ACCOUNT:\""),
] } else { &[] };

#[test]
fn every_wrong_configuration_says_how_to_mend_it() {
    assert!(TABLE.len() >= 40);
    let shop = Shop::new();
    for (place, lines, expected) in TABLE.iter().chain(BROKERS) {
        let (text, variable) = configuration(*place, lines);
        fs::write(shop.file("semel.toml"), text).unwrap();
        let mut command = shop.command(&["config", "check"]);
        let output = command.envs(variable).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{lines}: {}", all(&output));
        assert!(message.contains("error[E-CONFIG]"), "{lines}: {message}");
        assert!(message.contains(expected), "{lines}\nmust say {expected}\nand says {message}");
        let where_it_is = match variable {
            Some((name, _)) => name.to_owned(),
            None => "semel.toml:".to_owned(),
        };
        assert!(message.contains(&where_it_is), "{lines}: {message}");
    }
}

#[test]
fn a_file_that_is_not_there_says_who_writes_it() {
    let shop = Shop::new();
    let message = shop.refused(78, &["config", "check", "--config", "missing.toml"]);
    assert!(message.contains("E-CONFIG-READ") && message.contains("semel init"), "{message}");
    fs::create_dir(shop.file("empty")).unwrap();
    let message = shop.refused(78, &["config", "check", "--config", "empty"]);
    assert!(message.contains("the folder has no file *.toml"), "{message}");
}

/// The smallest configuration with these lines in it, and the variable if it is one.
fn configuration(place: In, lines: &str) -> (String, Option<(&str, &str)>) {
    let mut url = "url = 'sqlite://shop.db'";
    let mut sink = "type = 'file'\npath = 'events.ndjson'";
    let mut to = "to = 'out'";
    let (mut source, mut pipeline, mut end, mut variable) = ("", "", "", None);
    match place {
        Url => url = lines,
        Source => source = lines,
        Sink => sink = lines,
        Topic => (sink, pipeline) = lines.rsplit_once('\n').unwrap(),
        To => to = lines,
        Pipeline => pipeline = lines,
        End => end = lines,
        Whole => return (lines.to_owned(), None),
        Variable => variable = lines.split_once('='),
    }
    let parts = [
        "[source.orders]",
        url,
        source,
        "[sink.out]",
        sink,
        "[pipeline.orders]",
        "from = 'orders'",
        to,
        pipeline,
        end,
    ];
    let lines: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    (lines.join("\n") + "\n", variable)
}

//! Redis Streams, beside pipelined `XADD` of the same client, and `redis-benchmark`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{TryStreamExt, stream};
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Pipeline, cmd};
use semel_backends::redis::RedisConfig;
use semel_core::wire::{Binding, Format};
use semel_core::{Message, Sink};

use crate::events::{AT_ONCE, BATCH, Load, event};
use crate::{At, Broker, Native, Outcomes, Target};

pub(crate) const BROKER: Broker = Broker {
    name: "redis",
    server: At::Variable("SEMEL_TEST_REDIS_URL"),
    make: |_| Box::pin(async { Ok(()) }),
    sink: |target| {
        Box::pin(async move {
            Ok(Arc::new(RedisConfig::new(&target.server)?.connect().await?) as Arc<dyn Sink>)
        })
    },
    bare: |target, load| Box::pin(bare(target, load)),
    remove: |target| Box::pin(remove(target)),
    alike: None,
    native: Some(Native { tool: "redis-benchmark", run: native }),
};

async fn remove(target: Target) -> Outcomes<()> {
    let mut connection = Client::open(target.server)?.get_multiplexed_async_connection().await?;
    cmd("DEL").arg(&target.topic).exec_async(&mut connection).await?;
    Ok(())
}

/// The same bytes on the wire, as many batches under way; an error in the middle would not stop what
/// follows.
async fn bare(target: Target, load: Load) -> Outcomes<Duration> {
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let at_once = TcpSettings::default().set_nodelay(true);
    let client =
        Client::open(target.server.as_str().into_connection_info()?.set_tcp_settings(at_once))?;
    let connection = &client.get_multiplexed_async_connection_with_config(&patient).await?;
    let began = Instant::now();
    stream::iter(load.batches(&target.topic).map(Ok))
        .try_for_each_concurrent(AT_ONCE, async |batch: Vec<Message>| {
            let mut commands = Pipeline::with_capacity(batch.len());
            for message in &batch {
                commands.add_command(add(message));
            }
            let _ids: Vec<String> = commands.query_async(&mut connection.clone()).await?;
            Outcomes::Ok(())
        })
        .await?;
    Ok(began.elapsed())
}

fn add(message: &Message) -> Cmd {
    let mut command = cmd("XADD");
    command.arg(message.topic.as_str()).arg("*");
    Format::Plain.headers(&message.event, Binding::Redis, &mut |name, value| {
        command.arg(name).arg(value);
    });
    command.arg("payload").arg(&message.event.payload.bytes()[..]);
    command
}

/// One connection, as deep a pipeline, and the entry of one event again and again.
fn native(target: &Target, load: Load) -> Outcomes<f64> {
    let address = target.server.trim_start_matches("redis://");
    let (host, port) = address.split_once(':').ok_or("no port in the URL")?;
    let one = Message::first(&*target.topic, event(0, load.lanes, &load.payload()));
    let command = add(&one);
    let words = command.args_iter().filter_map(|word| match word {
        redis::Arg::Simple(bytes) => Some(OsStr::from_bytes(bytes)),
        _ => None,
    });
    let output = Command::new("redis-benchmark")
        .args(["-h", host, "-p", port.trim_end_matches('/'), "--csv", "-c", "1"])
        .args(["-n", &load.count.to_string(), "-P", &BATCH.to_string()])
        .args(words)
        .output()?;
    let said = String::from_utf8(output.stdout)?;
    let rate = said.lines().last().and_then(|line| line.split("\",\"").nth(1));
    Ok(rate.ok_or("it said nothing")?.trim_matches('"').parse()?)
}

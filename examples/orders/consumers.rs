//! Payment, inventory and notification: plain functions with the transaction in hand. What they do in
//! it, the memory that the message was seen, and the events that follow commit together.

use semel::backends::postgres::{Postgres, PostgresInbox, PostgresStore, Transaction};
use semel::relay::{Consumer, Handlers, Settings};
use semel::{Event, HandlerError, Message};

use crate::Outcome;
use crate::service::Order;

type Tx<'c> = Transaction<'c, Postgres>;

/// The consumer of this name, and the topic that it reads.
pub(crate) fn of(
    name: &str,
    store: &PostgresStore,
) -> Outcome<(&'static str, Consumer<PostgresInbox, Handlers<Tx<'static>>>)> {
    let consumer = Consumer::builder(name, store.inbox())
        .dead_letters(store.letters())
        // Every order changes the same few balances: two transactions would wait for each other.
        .settings(Settings { concurrency: Some(1), ..Settings::default() });
    let (topic, consumer) = match name {
        "payment" => ("order.events", consumer.on_with("OrderPlaced", store.clone(), pay)),
        "inventory" => ("order.events", consumer.on("OrderPlaced", reserve)),
        "notification" => ("payment.events", consumer.on("PaymentTaken", notify)),
        _ => return Err(format!("there is no service {name}").into()),
    };
    Ok((topic, consumer.build()))
}

async fn pay(
    store: &PostgresStore,
    tx: &mut Tx<'_>,
    order: Order,
    message: &Message,
) -> Result<(), HandlerError> {
    let id = &message.event.aggregate_id;
    for (account, cents) in [(order.customer.as_str(), -order.cents), ("shop", order.cents)] {
        sqlx::query("UPDATE accounts SET balance = balance + $1 WHERE name = $2")
            .bind(cents)
            .bind(account)
            .execute(&mut **tx)
            .await?;
    }
    sqlx::query("INSERT INTO payments (order_id, cents) VALUES ($1, $2)")
        .bind(id)
        .bind(order.cents)
        .execute(&mut **tx)
        .await?;
    let taken = Event::new("payment", id, "PaymentTaken").with_json(&order)?;
    store.outbox().append(tx, taken).await?;
    Ok(())
}

async fn reserve(tx: &mut Tx<'_>, order: Order, message: &Message) -> Result<(), HandlerError> {
    sqlx::query("UPDATE stock SET reserved = reserved + $1 WHERE product = $2")
        .bind(order.quantity)
        .bind(&order.product)
        .execute(&mut **tx)
        .await?;
    sqlx::query("INSERT INTO reservations (order_id, quantity) VALUES ($1, $2)")
        .bind(&message.event.aggregate_id)
        .bind(order.quantity)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn notify(tx: &mut Tx<'_>, order: Order, message: &Message) -> Result<(), HandlerError> {
    let text = format!("Thank you, {}: {} cents are paid.", order.customer, order.cents);
    sqlx::query("INSERT INTO mails (order_id, text) VALUES ($1, $2)")
        .bind(&message.event.aggregate_id)
        .bind(text)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

//! What the user sees: a few lines that are redrawn in place on a terminal, plain lines elsewhere,
//! and the table at the end.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use terminal_size::{Width, terminal_size};

use super::check::{Balance, Effects, Findings};
use super::consumers::Department;
use crate::args::DemoOptions;
use crate::logging::wants_colours;

/// Writes to standard output.
#[derive(Debug)]
pub(super) struct View {
    start: Instant,
    /// Whether lines can be redrawn in place.
    live: bool,
    colour: bool,
    /// Lines of the block that the next one replaces.
    drawn: usize,
    last_line: Option<Instant>,
}

/// How often which process was killed, and what happened last.
#[derive(Clone, Debug, Default)]
pub(super) struct Damage {
    pub(super) kills: Vec<(&'static str, u64)>,
    pub(super) last: String,
}

impl Damage {
    fn total(&self) -> u64 {
        self.kills.iter().map(|(_, kills)| kills).sum()
    }

    fn of(&self, process: &str) -> u64 {
        self.kills.iter().filter(|(name, _)| *name == process).map(|(_, kills)| kills).sum()
    }

    fn by_process(&self) -> String {
        let kills = self.kills.iter().map(|(name, kills)| format!("{name} {kills}"));
        kills.collect::<Vec<_>>().join(", ")
    }
}

impl View {
    /// How often the live block is redrawn.
    pub(super) const FRAME: Duration = Duration::from_millis(100);
    /// How often a plain line is written.
    const LINE: Duration = Duration::from_secs(1);

    pub(super) fn new(start: Instant) -> Self {
        let smart = env::var_os("TERM").is_none_or(|term| term != "dumb");
        let live = smart && io::stdout().is_terminal();
        let colour = live && wants_colours(env::var_os("NO_COLOR").as_deref());
        Self { start, live, colour, drawn: 0, last_line: None }
    }

    pub(super) fn opening(&self, options: &DemoOptions, folder: &Path) {
        let DemoOptions { orders, seed, faults, keep } = options;
        let faults = faults.as_str();
        let mut text = format!(
            "{}  {} orders, seed {seed}, faults {faults}\n\n{STORY}\n",
            self.bold("semel demo"),
            grouped(*orders),
        );
        if *keep {
            text += &format!(
                "The databases are in {}; ctrl-C ends the demo and leaves them there.\n\n",
                folder.display()
            );
        }
        write(&text);
    }

    /// Shows how far everything is: at once on a terminal, now and then elsewhere.
    pub(super) fn progress(&mut self, findings: &Findings, orders: u64, damage: &Damage) {
        if self.live {
            self.redraw(&Self::block(findings, orders, damage));
        } else if self.last_line.is_none_or(|last| last.elapsed() >= Self::LINE) {
            self.last_line = Some(Instant::now());
            write(&self.line(findings, orders, damage));
        }
    }

    /// The table, and what it means. `delay` is that of the first delivery, in milliseconds.
    pub(super) fn finish(&mut self, findings: &Findings, damage: &Damage, delay: Option<i64>) {
        self.redraw(&[]);
        write(&format!("\n{}\n{}\n", table(findings, damage, delay), self.verdict(findings)));
        let good = findings.are_good();
        write(&if good { lessons(findings, damage) } else { DEFECT.to_owned() });
    }

    pub(super) fn note(&mut self, text: &str) {
        self.redraw(&[]);
        write(&format!("{text}\n"));
    }

    fn block(findings: &Findings, orders: u64, damage: &Damage) -> Vec<String> {
        let mut lines = vec![
            format!(
                "{:<15}{} {} of {}",
                "orders",
                bar(findings.orders, orders),
                grouped(findings.orders),
                grouped(orders.max(findings.orders)),
            ),
            format!("{:<15}{:>9} messages", "published", grouped(findings.published.events)),
        ];
        for (department, effects) in Department::ALL.iter().zip(&findings.departments) {
            lines.push(format!(
                "{:<15}{:>9} effects {:>9} duplicates dropped",
                department.name(),
                grouped(effects.effects),
                grouped(effects.duplicates),
            ));
        }
        lines.push(format!("{:<15}{:>9} processes", "killed", grouped(damage.total())));
        lines.push(damage.last.clone());
        lines
    }

    fn line(&self, findings: &Findings, orders: u64, damage: &Damage) -> String {
        let effects = findings.departments.map(|effects| grouped(effects.effects)).join(" + ");
        format!(
            "{:>5.1} s  orders {} of {}, published {}, effects {effects}, \
             duplicates dropped {}, killed {}\n",
            self.start.elapsed().as_secs_f64(),
            grouped(findings.orders),
            grouped(orders.max(findings.orders)),
            grouped(findings.published.events),
            grouped(findings.duplicates()),
            damage.total(),
        )
    }

    /// Replaces the block that was drawn last. Lines are cut, because one that wraps would leave a
    /// part behind.
    fn redraw(&mut self, lines: &[String]) {
        if !self.live {
            return;
        }
        let width = terminal_size().map_or(80, |(Width(width), _)| usize::from(width));
        let mut text = String::new();
        if self.drawn > 0 {
            text += &format!("\x1b[{}A\x1b[J", self.drawn);
        }
        for line in lines {
            text.extend(line.chars().take(width.saturating_sub(1)));
            text.push('\n');
        }
        self.drawn = lines.len();
        write(&text);
    }

    fn verdict(&self, findings: &Findings) -> String {
        let (mark, code) = if findings.are_good() { ("ok", "32") } else { ("FAILED", "31") };
        let verdict = format!(
            "{mark}: lost {}, doubled {}, phantom {}, reordered {}, duplicates dropped {}",
            grouped(findings.lost()),
            grouped(findings.doubled()),
            grouped(findings.phantom()),
            grouped(findings.reordered()),
            grouped(findings.duplicates()),
        );
        self.paint(&verdict, &format!("1;{code}"))
    }

    fn bold(&self, text: &str) -> String {
        self.paint(text, "1")
    }

    fn paint(&self, text: &str, code: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

const STORY: &str = "\
1  The order service commits each order and its event in one SQLite transaction.
2  The relay reads the outbox and publishes to a broker inside this process.
3  Payments, inventory and notifications take effect, each in a database of its own.
4  All of them are killed and restarted at bad moments, and deliveries are repeated.
";

const DEFECT: &str = "
This is a defect of semel, or somebody changed the databases. Please run it again with the same
options and --keep, and report what it printed together with the files it leaves.
";

fn table(findings: &Findings, damage: &Damage, delay: Option<i64>) -> String {
    let Findings { orders, rolled_back, events, published, .. } = findings;
    let mut text = String::from("Counted in the tables\n");
    let mut row = |name: &str, value: String, remark: String| {
        text += format!("  {name:<22}{value:>16}   {remark}").trim_end();
        text.push('\n');
    };
    let vanished = format!("and {} rolled back by a kill", grouped(*rolled_back));
    row("orders committed", grouped(*orders), vanished);
    row("events committed", grouped(*events), "one per order, one per cancellation".into());
    let again = format!("and {} once more", grouped(published.repeated));
    row("events published", grouped(published.events), again);
    let first = delay.map_or_else(String::new, |delay| format!("{} ms", grouped_signed(delay)));
    row("first event delivered", first, "after the start".into());
    row("processes killed", grouped(damage.total()), damage.by_process());
    row("money", euros(findings.money.actual), agreement(findings.money, euros));
    row("stock", grouped_signed(findings.stock.actual), agreement(findings.stock, grouped_signed));
    text.push('\n');
    text + &consumers_table(&findings.departments)
}

fn consumers_table(departments: &[Effects; 3]) -> String {
    type Number = fn(&Effects) -> u64;
    const ROWS: [(&str, Number); 7] = [
        ("delivered", |effects| effects.delivered),
        ("duplicates dropped", |effects| effects.duplicates),
        ("effects", |effects| effects.effects),
        ("lost", |effects| effects.lost),
        ("doubled", |effects| effects.doubled),
        ("phantom", |effects| effects.phantom),
        ("reordered", |effects| effects.reordered),
    ];
    let mut text = format!("  {:<22}", "");
    for department in Department::ALL {
        text += &format!("{:>16}", department.name());
    }
    text.push('\n');
    for (name, number) in ROWS {
        text += &format!("  {name:<22}");
        for effects in departments {
            text += &format!("{:>16}", grouped(number(effects)));
        }
        text.push('\n');
    }
    text
}

fn agreement(balance: Balance, show: fn(i64) -> String) -> String {
    if balance.agrees() {
        "as the orders say".into()
    } else {
        format!("the orders say {}", show(balance.expected))
    }
}

fn lessons(findings: &Findings, damage: &Damage) -> String {
    let again = findings.published.repeated;
    let consumers: u64 =
        Department::ALL.iter().map(|department| damage.of(department.name())).sum();
    format!(
        "
What you saw
  An order and its event share a transaction: {rolled_back} died before the commit and left neither.
  The relay died {relay} and lost nothing: what it was not sure of, it published again ({again}).
  The consumers died {consumers}; message id and effect share a transaction (the inbox), so a
  message that came again was dropped ({dropped} were), and nothing took effect twice.
Try next
  semel demo --orders 5000 --faults many          more of everything; --seed 7: other moments
  semel demo --keep                               leave it running and look into the databases
  semel migrate up --database sqlite://shop.db    the tables in a database of your own
  semel relay --help                              publish from there
",
        rolled_back = grouped(findings.rolled_back),
        relay = times(damage.of("relay")),
        again = grouped(again),
        consumers = times(consumers),
        dropped = grouped(findings.duplicates()),
    )
}

fn times(count: u64) -> String {
    if count == 1 { "once".into() } else { format!("{} times", grouped(count)) }
}

fn bar(done: u64, all: u64) -> String {
    const CELLS: u64 = 24;
    let full = usize::try_from((done.min(all) * CELLS) / all.max(1)).unwrap_or(0);
    let empty = usize::try_from(CELLS).unwrap_or(0) - full;
    format!("[{}{}]", "#".repeat(full), "-".repeat(empty))
}

/// A number with its thousands apart: 12,345.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn grouped_signed(number: i64) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", grouped(number.unsigned_abs()))
}

fn euros(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}{}.{:02} EUR", grouped(cents / 100), cents % 100)
}

/// A reader that went away ends the output, not the demo: the exit code still tells the result.
fn write(text: &str) {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(euros(-123_456), "-1,234.56 EUR");
        assert_eq!([0, 1, 2].map(times), ["0 times", "once", "2 times"]);
    }

    #[test]
    fn the_bar_never_overflows() {
        assert_eq!(bar(0, 10).matches('#').count(), 0);
        assert_eq!(bar(10, 10).matches('#').count(), 24);
        assert_eq!(bar(25, 10).matches('#').count(), 24);
    }
}

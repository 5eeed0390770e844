//! The alert rules and the dashboard are understood by what reads them: YAML and PromQL by real
//! parsers, metrics and labels by what is emitted, commands by what there is.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test code: a panic is how it reports")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};
use promql_parser::util::{ExprVisitor, parse_duration, walk_expr};
use semel::telemetry::{self, Kind, Metric};
use serde::Deserialize;
use serde_json::Value;

/// A file of rules, and nothing that Prometheus would not take.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    lasts: Option<String>,
    labels: Labels,
    annotations: Annotations,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Labels {
    severity: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Annotations {
    summary: String,
    description: String,
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn rules() -> Vec<Rule> {
    let rules: Rules = serde_saphyr::from_str(&read("packaging/prometheus/alerts.yaml")).unwrap();
    let [group] = <[Group; 1]>::try_from(rules.groups).ok().unwrap();
    assert_eq!(group.name, "semel");
    group.rules
}

#[test]
fn every_alert_is_a_rule_that_prometheus_takes() {
    let mut names = BTreeSet::new();
    for rule in rules() {
        let Rule { alert, expr, lasts, labels, annotations } = rule;
        assert!(names.insert(alert.clone()), "{alert} is there twice");
        let parsed = parse(&expr);
        // A rule without a comparison is always true.
        assert!(matches!(parsed, Expr::Binary(_)), "{alert}: {expr}");
        let kept = labels_of(&parsed);
        for named in annotations.summary.split("$labels.").skip(1) {
            let label = named.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            assert!(kept.contains(label), "{alert}: {label} is not left of {expr}");
        }
        if let Some(lasts) = lasts {
            assert!(parse_duration(&lasts).is_ok(), "{alert}: {lasts}");
        }
        assert!(["info", "warning", "critical"].contains(&&*labels.severity), "{alert}");
    }
    assert!(names.len() >= 14, "{names:?}");
}

/// Whoever is woken finds what to run, in the alert and in the documentation.
#[test]
fn every_alert_says_what_to_run_and_is_documented() {
    let (page, commands) = (read("docs/operate.md"), read("docs/cli.md"));
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `Semel")?.split('`').next());
    let documented: BTreeSet<_> = rows.map(|name| format!("Semel{name}")).collect();
    let mut there = BTreeSet::new();
    for Rule { alert, annotations, .. } in rules() {
        let (_, run) = annotations.description.split_once("Run: ").unwrap_or_else(|| {
            panic!("{alert} does not say what to run: {}", annotations.description)
        });
        let words = run.split(' ').take_while(|word| word.chars().all(char::is_lowercase));
        let command = words.collect::<Vec<_>>().join(" ");
        assert!(commands.contains(&format!("# `{command}`")), "{alert}: there is no {command}");
        let row = page.lines().find(|line| line.starts_with(&format!("| `{alert}` |")));
        assert!(row.is_some_and(|row| row.contains(&format!("`{command}"))), "{alert}: {row:?}");
        there.insert(alert);
    }
    assert_eq!(documented, there);
}

/// Where no process is left, there is nothing that any other rule could compare.
#[test]
fn an_alert_fires_when_no_relay_is_left() {
    let fires = |rule: &Rule| match parse(&rule.expr) {
        Expr::Binary(binary) => {
            matches!(&*binary.lhs, Expr::Call(call) if call.func.name == "absent")
        }
        _ => false,
    };
    let rules = rules();
    let rule = rules.iter().find(|rule| fires(rule)).unwrap();
    assert!(rule.expr.contains(" >= 0)"), "what is NaN is not told: {}", rule.expr);
}

/// What a process does not know any more is NaN, and that differs from every number.
#[test]
fn no_alert_fires_for_what_is_not_known() {
    for Rule { alert, expr, .. } in rules() {
        assert!(!expr.contains("!="), "{alert}: {expr}");
    }
}

#[test]
fn every_panel_asks_for_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(&read("packaging/grafana/semel.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 12);
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let expr = target["expr"].as_str().unwrap();
            let asked = expr.replace("$__rate_interval", "5m").replace("$pipeline", "orders");
            assert!(!asked.contains('$'), "{title}: {expr} has a variable that is not known");
            let kept = labels_of(&parse(&asked));
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            for named in legend.split("{{").skip(1) {
                let label = named.split("}}").next().unwrap().trim();
                assert!(kept.contains(label), "{title}: {label} is not left of {expr}");
            }
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["query"].as_str().unwrap();
        if let Some(asked) = query.strip_prefix("label_values(") {
            let (name, label) = asked.trim_end_matches(')').split_once(", ").unwrap();
            assert!(metric(name).labels.contains(&label), "{query}");
        }
    }
}

/// What nobody looks at may as well not be counted.
#[test]
fn every_metric_is_on_the_dashboard_or_in_an_alert() {
    let shown = read("packaging/grafana/semel.json") + &read("packaging/prometheus/alerts.yaml");
    let missing: Vec<_> =
        telemetry::ALL.iter().filter(|metric| !shown.contains(metric.name)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
#[should_panic(expected = "has no label state")]
fn a_label_that_a_metric_does_not_have_is_found() {
    parse("semel_parked_aggregates{state=\"dead\"} > 0");
}

#[test]
#[should_panic(expected = "semel_nothing_total is not emitted")]
fn a_metric_that_does_not_exist_is_found() {
    parse("rate(semel_nothing_total[5m]) > 0");
}

/// The expression, if it can be asked: of metrics that exist, by labels that they have.
fn parse(expr: &str) -> Expr {
    let parsed = parser::parse(expr).unwrap_or_else(|error| panic!("{expr}: {error}"));
    walk_expr(&mut Check(expr), &parsed).unwrap_or_else(|error: String| panic!("{error}"));
    parsed
}

struct Check<'a>(&'a str);

impl ExprVisitor for Check<'_> {
    type Error = String;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, String> {
        match expr {
            Expr::VectorSelector(selector) => self.selector(selector)?,
            Expr::MatrixSelector(selector) => self.selector(&selector.vs)?,
            Expr::Aggregate(aggregate) => self.modifier(aggregate.modifier.as_ref(), expr)?,
            Expr::Binary(binary) => {
                let matching = binary.modifier.as_ref().and_then(|it| it.matching.as_ref());
                self.modifier(matching, expr)?;
            }
            _ => {}
        }
        Ok(true)
    }
}

impl Check<'_> {
    fn selector(&self, selector: &VectorSelector) -> Result<(), String> {
        let name = selector.name.as_deref().ok_or(format!("{}: no metric", self.0))?;
        let known = metric(name);
        let (matchers, others) = (&selector.matchers.matchers, &selector.matchers.or_matchers);
        for matcher in matchers.iter().chain(others.iter().flatten()) {
            if !known.labels.contains(&&*matcher.name) {
                return Err(format!("{}: {name} has no label {}", self.0, matcher.name));
            }
        }
        Ok(())
    }

    /// `by` and `on` name labels that what they are about has.
    fn modifier(&self, modifier: Option<&LabelModifier>, about: &Expr) -> Result<(), String> {
        let mut all = Selected(BTreeSet::new());
        walk_expr(&mut all, about)?;
        let named = modifier.into_iter().flat_map(|modifier| &modifier.labels().labels);
        for label in named {
            if !all.0.contains(label) {
                return Err(format!("{}: nothing in it has the label {label}", self.0));
            }
        }
        Ok(())
    }
}

/// The labels of all metrics in an expression.
struct Selected(BTreeSet<String>);

impl ExprVisitor for Selected {
    type Error = String;

    fn pre_visit(&mut self, expr: &Expr) -> Result<bool, String> {
        let selector = match expr {
            Expr::VectorSelector(selector) => selector,
            Expr::MatrixSelector(selector) => &selector.vs,
            _ => return Ok(true),
        };
        let name = selector.name.as_deref().unwrap_or_default();
        self.0.extend(metric(name).labels.iter().map(ToString::to_string));
        if name.ends_with("_bucket") {
            self.0.insert("le".into());
        }
        Ok(true)
    }
}

/// The labels that are left of an expression when it is answered.
fn labels_of(expr: &Expr) -> BTreeSet<String> {
    match expr {
        Expr::Aggregate(aggregate) => match &aggregate.modifier {
            Some(LabelModifier::Include(labels)) => labels.labels.iter().cloned().collect(),
            Some(LabelModifier::Exclude(_)) => panic!("without() is not understood here: {expr}"),
            None => BTreeSet::new(),
        },
        Expr::Binary(binary) => labels_of(&binary.lhs),
        Expr::Paren(inner) => labels_of(&inner.expr),
        Expr::Call(call) => {
            let mut labels: BTreeSet<_> =
                call.args.args.iter().flat_map(|argument| labels_of(argument)).collect();
            if call.func.name == "histogram_quantile" {
                labels.remove("le");
            }
            labels
        }
        Expr::VectorSelector(_) | Expr::MatrixSelector(_) => {
            let mut labels = Selected(BTreeSet::new());
            walk_expr(&mut labels, expr).unwrap();
            labels.0
        }
        _ => BTreeSet::new(),
    }
}

/// The metric behind a name, which may be that of a part of a histogram.
fn metric(name: &str) -> &'static Metric {
    let part = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
    let histogram = telemetry::ALL
        .iter()
        .find(|metric| metric.kind == Kind::Histogram && Some(metric.name) == part);
    let plain =
        telemetry::ALL.iter().find(|metric| metric.kind != Kind::Histogram && metric.name == name);
    histogram.or(plain).unwrap_or_else(|| panic!("{name} is not emitted"))
}

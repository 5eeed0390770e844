//! A running relay, asked over HTTP instead of its database: with a token, by the rules of the page.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use semel_core::{Failure, Secret};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::args::ApiOption;
use crate::exit::Problem;

const EFFECT: &str = "nothing was changed, unless it is said above; no event is lost";

/// The page's own API.
pub(super) struct Api {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
    token: Option<Secret>,
}

impl Api {
    const PATIENCE: Duration = Duration::from_secs(60);
    /// A change goes on for as long as there are events to change; it is the relay that loses patience
    /// with a database, at each step, and says how many it were by then.
    const LONG: Duration = Duration::from_secs(24 * 3600);

    /// That of the options, if they name one.
    pub(super) fn of(options: &ApiOption) -> Result<Option<Self>, Problem> {
        let Some(url) = &options.api else { return Ok(None) };
        let problem = |failure| Problem::new(failure, url, EFFECT).of_usage();
        let base = check(url).map_err(problem)?;
        let token = token(options).map_err(problem)?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Some(Self { client, base, token }))
    }

    /// The pipeline of this name; the only one, if there is no name.
    pub(super) async fn pipeline(&self, name: Option<&str>) -> Result<String, Problem> {
        let overview = self.overview().await?;
        let known = overview.iter().filter_map(|one| one["name"].as_str());
        let known: Vec<_> = known.collect();
        match (name, &known[..]) {
            (None, [only]) => Ok((*only).to_owned()),
            (Some(name), known) if known.contains(&name) => Ok(name.to_owned()),
            _ => {
                let what = "which pipeline is meant?";
                let fix = format!("give --pipeline one of {}", known.join(", "));
                let failure = Failure::misconfigured("E-API-PIPELINE", what).with_fix(fix);
                Err(self.problem(failure).of_usage())
            }
        }
    }

    /// All pipelines, once the relay has looked at each.
    pub(super) async fn overview(&self) -> Result<Vec<Value>, Problem> {
        const PATIENCE: u32 = 100;
        for _ in 0..PATIENCE {
            let overview = self.ask(Method::GET, "api/overview", None).await?;
            let pipelines = overview["pipelines"].as_array().cloned().unwrap_or_default();
            let is_known = |one: &Value| !one["states"].is_null() || !one["trouble"].is_null();
            if pipelines.iter().all(is_known) {
                return Ok(pipelines);
            }
            sleep(Duration::from_millis(100)).await;
        }
        Err(self.problem(down("the relay has not looked at its pipelines yet")))
    }

    /// Refuses numbers that are old because the relay's own database does not answer it.
    pub(super) fn check_trouble(&self, pipeline: &Value) -> Result<(), Problem> {
        let trouble = &pipeline["trouble"];
        if trouble.is_null() {
            return Ok(());
        }
        let word = |key: &str| trouble[key].as_str().unwrap_or_default();
        let name = pipeline["name"].as_str().unwrap_or_default();
        let what = format!("the relay says of {name} {}: {}", word("code"), word("error"));
        let fix = match word("fix") {
            "" => "look whether the database of the relay runs",
            fix => fix,
        };
        Err(self.problem(Failure::unavailable("E-API-DOWN", what).with_fix(fix)))
    }

    /// Changes events, or counts those that it would change.
    pub(super) async fn change(
        &self,
        pipeline: &str,
        action: &str,
        words: &str,
        dry_run: bool,
    ) -> Result<usize, Problem> {
        let order = json!({ "action": action, "q": words, "dry_run": dry_run });
        let name = utf8_percent_encode(pipeline, NON_ALPHANUMERIC);
        let path = format!("api/pipelines/{name}/changes");
        let done = self.ask_within(Self::LONG, Method::POST, &path, Some(&order)).await?;
        let count = done["events"].as_u64().and_then(|count| usize::try_from(count).ok());
        count.ok_or_else(|| self.problem(strange(&done.to_string())))
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Problem> {
        self.ask_within(Self::PATIENCE, method, path, body).await
    }

    async fn ask_within(
        &self,
        limit: Duration,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Problem> {
        let answer = timeout(limit, self.try_ask(method, path, body)).await;
        let late = || down(&format!("no answer within {} seconds", limit.as_secs()));
        let answer = answer.unwrap_or_else(|_| Err(late()));
        answer.map_err(|failure| self.problem(failure))
    }

    async fn try_ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        const LONGEST: usize = 16 << 20;
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        request = request.header(CONTENT_TYPE, "application/json").header(HOST, self.host());
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| wrong_url().with_source(error))?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| down("cannot reach it").with_source(error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST).collect().await;
        let body = body.map_err(|error| down(&format!("the answer broke off: {error}")))?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        let value = serde_json::from_str(&text).map_err(|_| strange(&text));
        if status.is_success() { value } else { Err(refusal(status, &value.unwrap_or_default())) }
    }

    fn host(&self) -> &str {
        self.base.trim_start_matches("http://").split('/').next().unwrap_or_default()
    }

    fn problem(&self, failure: Failure) -> Problem {
        Problem::new(failure, &self.base, EFFECT)
    }
}

/// Tokens must not travel where others can read them.
fn check(url: &str) -> Result<String, Failure> {
    let uri: Uri = url.parse().map_err(|_| wrong_url())?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_here =
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match uri.scheme_str() {
        Some("http") if is_here => Ok(format!("{}/", url.trim_end_matches('/'))),
        Some("http" | "https") => {
            let what = "the relay's page has no encryption, and a token must not travel without";
            Err(Failure::misconfigured("E-API-REMOTE", what).with_fix(format!(
                "run ssh -L 9464:127.0.0.1:9464 {host}, then this with --api http://127.0.0.1:9464"
            )))
        }
        _ => Err(wrong_url()),
    }
}

fn wrong_url() -> Failure {
    Failure::misconfigured("E-API-URL", "that is no address of a relay's page")
        .with_fix("give --api http://127.0.0.1:9464, as listen of [http] has it")
}

fn token(options: &ApiOption) -> Result<Option<Secret>, Failure> {
    let Some(path) = &options.token_file else {
        let said = std::env::var("SEMEL_API_TOKEN").ok().filter(|token| !token.is_empty());
        return Ok(said.map(Secret::new));
    };
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::misconfigured("E-API-TOKEN", format!("cannot read {}", path.display()))
            .with_source(error)
            .with_fix("give --token-file a file that this user may read")
    })?;
    Ok(Some(Secret::new(text.trim())))
}

fn down(what: &str) -> Failure {
    Failure::unavailable("E-API-DOWN", what.to_owned())
        .with_fix("look whether the relay runs, and which listen its [http] has")
}

fn strange(answer: &str) -> Failure {
    let begin: String = answer.chars().take(200).collect();
    Failure::refused("E-API-ANSWER", format!("that is no answer of a relay: {begin:?}"))
        .with_fix("give --api the address of a relay of this version")
}

/// What the relay said.
fn refusal(status: StatusCode, said: &Value) -> Failure {
    let word = |key: &str| said[key].as_str().unwrap_or_default();
    let what = format!("the relay says {}: {} ({status})", word("code"), word("error"));
    let failure = match status {
        StatusCode::UNAUTHORIZED => Failure::misconfigured("E-API-LOGIN", what),
        StatusCode::FORBIDDEN => Failure::misconfigured("E-API-PRIVILEGE", what),
        StatusCode::SERVICE_UNAVAILABLE => Failure::unavailable("E-API-DOWN", what),
        _ => Failure::refused("E-API-REFUSED", what),
    };
    let fix = match (status, word("fix")) {
        (StatusCode::UNAUTHORIZED, _) => "give --token-file, or set SEMEL_API_TOKEN",
        (_, "") => "look at what is asked for",
        (_, fix) => fix,
    };
    failure.with_fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_this_machine_only() {
        for here in ["http://127.0.0.1:9464", "http://localhost:9464/", "http://[::1]:9464"] {
            assert!(check(here).unwrap().ends_with('/'), "{here}");
        }
        assert_eq!(check("http://127.0.0.1:1/semel/").unwrap(), "http://127.0.0.1:1/semel/");
        for there in ["http://ops.example.com", "http://10.0.0.1:9464", "https://ops.example.com"] {
            let failure = check(there).unwrap_err();
            assert_eq!(failure.code(), "E-API-REMOTE", "{there}");
            assert!(failure.fix().unwrap().contains("ssh -L"));
        }
        for nowhere in ["127.0.0.1:9464", "ftp://localhost", ""] {
            assert_eq!(check(nowhere).unwrap_err().code(), "E-API-URL", "{nowhere}");
        }
    }
}

//! Tokens that go along with a request are in nothing that is said: that of `--api`, and that of a
//! collector of traces.

use super::secrets::{MARKER, is_silent};
use crate::shop::Shop;

/// What may have been meant as the token, and what can be no header at all.
#[cfg(feature = "page")]
#[test]
fn no_token_of_the_page_is_ever_said() {
    let shop = Shop::new();
    let token = format!("{MARKER}-{MARKER}");
    shop.write_config(&format!(
        "[source.orders]\nurl = 'sqlite://shop.db'\n[sink.out]\ntype = 'file'\npath = 'x'\n\
         [pipeline.orders]\nfrom = 'orders'\nto = 'out'\n[http]\nlisten = '127.0.0.1:0'\n\
         [http.access.olga]\nrole = 'operator'\ntoken = '{token}'\n"
    ));
    is_silent("config show", &shop.command(&["config", "show"]).output().unwrap());
    let mut relay = shop.background(&["relay"]);
    let page = format!("http://{}", shop.page());
    let (wrong, broken) = (format!("{token}x"), format!("{token}\u{7f}\n{MARKER}"));
    for (said, expected) in [(&token, Some(0)), (&wrong, Some(77)), (&broken, None)] {
        std::fs::write(shop.file("token"), said).unwrap();
        for api in [page.as_str(), "http://127.0.0.1:1", "https://ops.example.com"] {
            for arguments in [&["status"][..], &["dead", "retry", "--all", "--yes"]] {
                let command = || {
                    let mut command = shop.command(arguments);
                    command.args(["--api", api]).env("SEMEL_LOG", "trace");
                    command
                };
                let by_file = command().args(["--token-file", "token"]).output().unwrap();
                let by_variable = command().env("SEMEL_API_TOKEN", said).output().unwrap();
                for output in [by_file, by_variable] {
                    is_silent(&format!("{api} {arguments:?}"), &output);
                    let expected = expected.filter(|_| api == page);
                    let code = output.status.code();
                    assert!(
                        expected.is_none() || code == expected,
                        "{api} {arguments:?}: {code:?}"
                    );
                }
            }
        }
    }
    relay.signal("TERM");
    relay.0.wait().unwrap();
    assert!(!shop.log().contains(MARKER), "{}", shop.log().replace(MARKER, "MARKER"));
}

/// A collector that is not there, one that is asked with what can be no header, and none that can be asked.
#[cfg(feature = "otlp")]
#[test]
fn no_header_for_a_collector_is_ever_said() {
    let shop = Shop::new();
    let trace = "traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let send = ["send", "--database", "sqlite://shop.db", "--header", trace];
    let event = ["--aggregate-type", "order", "--aggregate-id", "42", "--type", "Placed"];
    for headers in
        ["authorization=Bearer MARKER", "MARKER", "a=MARKER\u{7f}", "a\n=MARKER", "=MARKER"]
    {
        shop.expect(0, &[&send[..], &event].concat());
        for endpoint in ["http://127.0.0.1:1", "no address at all"] {
            for name in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"] {
                let mut relay = shop.command(&["relay", "--drain"]);
                relay.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("SEMEL_LOG", "debug");
                let output = relay.env(name, headers.replace("MARKER", MARKER)).output().unwrap();
                is_silent(&format!("{endpoint} {name} {headers}"), &output);
            }
        }
    }
}

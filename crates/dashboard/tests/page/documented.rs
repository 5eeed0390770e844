//! The table of requests in the documentation is what the router has: none is missing, none made up.

use std::collections::BTreeSet;

#[test]
fn every_request_is_documented() {
    let documented = documented(include_str!("../../../../docs/page.md"));
    let served = served(include_str!("../../src/lib.rs"));
    assert!(served.len() > 10, "{served:?}");
    assert_eq!(documented, served);
}

/// What stands between backticks in the first column, without its query.
fn documented(page: &str) -> BTreeSet<String> {
    let (_, table) = page.split_once("\n| request | answer |\n").expect("the table");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let requests = rows.flat_map(|row| {
        let requests = row.split(" | ").next().unwrap_or_default().split('`').skip(1).step_by(2);
        requests.map(|request| request.split('?').next().unwrap_or_default().to_owned())
    });
    requests.collect()
}

/// The routes of the API, as they are written.
fn served(source: &str) -> BTreeSet<String> {
    let routes = source.lines().filter_map(|line| line.trim().strip_prefix("(\"/api/"));
    let request = |route: &str| {
        let (path, handler) = route.split_once('"')?;
        let method = if handler.contains("post(") { "POST" } else { "GET" };
        let names = [("{pipeline}", "NAME"), ("{id}", "ID"), ("{key}", "KEY")];
        let path =
            names.iter().fold(path.to_owned(), |path, (name, word)| path.replace(name, word));
        Some(format!("{method} /api/{path}"))
    };
    routes.filter_map(request).collect()
}

//! Who gets in, and who may do what.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::{Extension, Router};
use semel_core::Secret;
use semel_core::memory::MemoryDatabase;
use semel_dashboard::{Access, Caller, Dashboard, Pipeline, Role, router};
use serde_json::json;

use crate::{Answer, get, orders, over, send};

const TOKEN: &str = "correct horse battery staple";

fn guarded(database: &MemoryDatabase) -> Router {
    let token = |text: &str| Secret::new(text);
    let access = Access::default()
        .host("ops.example.com")
        .caller("vera", Role::Viewer, &token("token of the viewer"))
        .caller("olga", Role::Operator, &token(TOKEN))
        .caller("ada", Role::Admin, &token("token of the admin"));
    over(database, access)
}

async fn with(app: &Router, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = json!({"action": "replay", "q": "state:published"}).to_string();
    let request = request.header("content-type", "application/json").body(Body::from(body));
    send(app, request.unwrap()).await
}

#[tokio::test]
async fn nobody_gets_in_without_a_token() {
    let app = guarded(&orders().await.0);
    for path in
        ["/", "/assets/main.js", "/api/overview", "/metrics", "/api/pipelines/orders/events"]
    {
        let answer = get(&app, path).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
        assert!(answer.headers["www-authenticate"].to_str().unwrap().starts_with("Basic"));
        assert_eq!(answer.json()["code"], "E-HTTP-AUTH");
    }
    for wrong in ["Bearer nothing", "Bearer ", "Basic !", "Basic b2xnYTp4", "Digest x", TOKEN] {
        let answer = with(&app, "GET", "/api/overview", &[("authorization", wrong)]).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{wrong}");
    }
    for probe in ["/livez", "/readyz"] {
        assert_eq!(get(&app, probe).await.status, StatusCode::OK, "{probe}");
    }
}

#[tokio::test]
async fn a_token_tells_who_it_is_as_bearer_or_as_password() {
    use base64::Engine;
    let app = guarded(&orders().await.0);
    let bearer = format!("Bearer {TOKEN}");
    let basic = |name: &str| {
        let both = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{TOKEN}"));
        format!("Basic {both}")
    };
    for authorization in [bearer, basic("olga")] {
        let answer = with(&app, "GET", "/api/overview", &[("authorization", &authorization)]).await;
        assert_eq!(answer.json()["you"], json!({"name": "olga", "role": "operator"}));
    }
    let ada = basic("ada");
    let answer = with(&app, "GET", "/api/overview", &[("authorization", &ada)]).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "that is not her token");
}

/// As it is mounted by an application that has said nothing of who may come.
#[tokio::test]
async fn nobody_gets_in_unless_somebody_says_so() {
    let (database, _) = orders().await;
    let pipeline = Pipeline::new("orders", Arc::new(database.clone()));
    let unsaid = router(Dashboard::new(|| async { Ok(()) }).with(pipeline));
    let named_only = over(&database, Access::default().host("ops.example.com"));
    for app in [&unsaid, &named_only] {
        for path in ["/", "/assets/main.js", "/api/overview", "/metrics"] {
            let answer = get(app, path).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(answer.json()["code"], "E-HTTP-AUTH");
            let fix = answer.json()["fix"].to_string();
            assert!(fix.contains("Access::caller") && fix.contains("Access::open()"), "{fix}");
        }
        let changed = with(app, "POST", "/api/pipelines/orders/changes", &[]).await;
        assert_eq!(changed.status, StatusCode::UNAUTHORIZED);
        for probe in ["/livez", "/readyz"] {
            assert_eq!(get(app, probe).await.status, StatusCode::OK, "{probe}");
        }
        let known = app.clone().layer(Extension(Caller::new("sso-user", Role::Viewer)));
        assert_eq!(get(&known, "/api/overview").await.json()["you"]["role"], "viewer");
    }
    let closed = over(&database, Access::open().caller("vera", Role::Viewer, &Secret::new(TOKEN)));
    assert_eq!(get(&closed, "/api/overview").await.status, StatusCode::UNAUTHORIZED);
    let opened = over(&database, Access::open());
    assert_eq!(get(&opened, "/api/overview").await.json()["you"]["role"], "admin");
}

#[tokio::test]
async fn roles_are_held_everywhere() {
    let (database, _) = orders().await;
    let app = guarded(&database);
    let id = database.events()[0].id;
    let key = "0".repeat(64);
    let reveal = format!("/api/pipelines/orders/events/{id}/reveal");
    let free = format!("/api/pipelines/orders/keys/{key}/free");
    let cases = [
        ("token of the viewer", reveal.as_str(), StatusCode::FORBIDDEN),
        (TOKEN, reveal.as_str(), StatusCode::OK),
        ("token of the viewer", "/api/pipelines/orders/changes", StatusCode::FORBIDDEN),
        (TOKEN, "/api/pipelines/orders/changes", StatusCode::FORBIDDEN),
        ("token of the admin", "/api/pipelines/orders/changes", StatusCode::OK),
        (TOKEN, free.as_str(), StatusCode::FORBIDDEN),
    ];
    for (token, path, expected) in cases {
        let bearer = format!("Bearer {token}");
        let answer = with(&app, "POST", path, &[("authorization", &bearer)]).await;
        assert_eq!(answer.status, expected, "{token} {path}: {}", answer.body);
        if expected == StatusCode::FORBIDDEN {
            assert_eq!(answer.json()["code"], "E-HTTP-ROLE");
        }
    }
    let activity = with(
        &app,
        "GET",
        "/api/pipelines/orders/activity",
        &[("authorization", "Bearer token of the viewer")],
    );
    let activity = activity.await.json();
    let who: Vec<_> = activity.as_array().unwrap().iter().map(|entry| &entry["who"]).collect();
    assert_eq!(who, ["ada", "olga"], "what was refused changed nothing");
}

#[tokio::test]
async fn another_name_is_refused() {
    let app = over(&orders().await.0, Access::open().host("ops.example.com"));
    let cases = [
        ("127.0.0.1:9464", true),
        ("[::1]:9464", true),
        ("localhost:9464", true),
        ("10.1.2.3", true),
        ("OPS.example.com", true),
        ("ops.example.com:443", true),
        ("evil.example.com", false),
        ("127.0.0.1.evil.example.com", false),
        ("localhost.evil.example.com:9464", false),
    ];
    for (host, expected) in cases {
        let answer = with(&app, "GET", "/api/overview", &[("host", host)]).await;
        assert_eq!(answer.status == StatusCode::OK, expected, "{host}: {}", answer.status);
        if !expected {
            assert_eq!(answer.json()["code"], "E-HTTP-HOST");
        }
    }
}

#[tokio::test]
async fn another_page_changes_nothing() {
    let (database, _) = orders().await;
    let app = over(&database, Access::open());
    let path = "/api/pipelines/orders/changes";
    let own = ("host", "127.0.0.1:9464");
    for foreign in [
        vec![own, ("sec-fetch-site", "cross-site")],
        vec![own, ("sec-fetch-site", "same-site")],
        vec![own, ("origin", "https://evil.example.com")],
        vec![own, ("origin", "http://127.0.0.1:8080")],
        vec![own, ("origin", "null")],
    ] {
        let answer = with(&app, "POST", path, &foreign).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{foreign:?}");
        assert_eq!(answer.json()["code"], "E-HTTP-ORIGIN");
    }
    for good in [
        vec![own],
        vec![own, ("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:9464")],
        vec![own, ("origin", "http://127.0.0.1:9464")],
    ] {
        assert_eq!(with(&app, "POST", path, &good).await.status, StatusCode::OK, "{good:?}");
    }
}

#[tokio::test]
async fn an_application_may_say_who_it_is() {
    let (database, _) = orders().await;
    let app = guarded(&database).layer(Extension(Caller::new("sso-user", Role::Viewer)));
    let overview = get(&app, "/api/overview").await.json();
    assert_eq!(overview["you"]["name"], "sso-user");
}

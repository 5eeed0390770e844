//! What holds for every request and every answer.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{self, HOST, HeaderName, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Dashboard;
use crate::access::Caller;
use crate::asked::Explanation;

/// Lets in who may come in: under a known name, from the page itself, and with a proof.
pub(crate) async fn admit(
    State(dashboard): State<Dashboard>,
    mut request: Request,
    next: Next,
) -> Response {
    // Probes know no names and no tokens, and learn nothing.
    if matches!(request.uri().path(), "/livez" | "/readyz") {
        return next.run(request).await;
    }
    let headers = request.headers();
    if !dashboard.access.answers_to(headers) {
        let error = "this is not reached under that name";
        let fix = "add the name to hosts of [http], or use the address";
        return refuse(StatusCode::MISDIRECTED_REQUEST, "E-HTTP-HOST", error, fix);
    }
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_safe && !is_same_origin(headers) {
        let error = "another web page asked for this";
        let fix = "ask from the page itself, or without a browser";
        return refuse(StatusCode::FORBIDDEN, "E-HTTP-ORIGIN", error, fix);
    }
    if request.extensions().get::<Caller>().is_none() {
        let Some(caller) = dashboard.access.who(headers) else {
            return ask_who(dashboard.access.is_closed());
        };
        request.extensions_mut().insert(caller);
    }
    next.run(request).await
}

/// Browsers say where an unsafe request comes from; others do not, and need not.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(site) = text(HeaderName::from_static("sec-fetch-site")) {
        return site == "same-origin";
    }
    match (text(ORIGIN), text(HOST)) {
        (None, _) => true,
        (Some(origin), Some(host)) => {
            origin.split_once("://").is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(host))
        }
        (Some(_), None) => false,
    }
}

/// Where nobody could ever get in, it is not the visitor who can do something about it.
fn ask_who(is_closed: bool) -> Response {
    let (error, fix) = if is_closed {
        (
            "nobody may come in: the application that serves this page has said of nobody that they may",
            "give Dashboard::with_access somebody, by Access::caller, or put a Caller into the extensions \
             of the request; Access::open() makes everybody admin",
        )
    } else {
        (
            "who are you? there is no such token",
            "send Authorization: Bearer TOKEN, or name and token as user and password",
        )
    };
    let mut response = refuse(StatusCode::UNAUTHORIZED, "E-HTTP-AUTH", error, fix);
    let how = HeaderValue::from_static("Basic realm=\"semel\", charset=\"UTF-8\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, how);
    response
}

fn refuse(status: StatusCode, code: &'static str, error: &str, fix: &str) -> Response {
    let explanation = Explanation { code, error: error.into(), fix: Some(fix.into()) };
    (status, Json(explanation)).into_response()
}

/// Only the page's own files may run; only its own API may be asked; nobody may frame it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'";

/// Adds the security headers.
pub(crate) async fn lock_down(mut response: Response) -> Response {
    const FIXED: [(HeaderName, HeaderValue); 6] = [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ];
    for (name, value) in FIXED {
        response.headers_mut().insert(name, value);
    }
    response
}

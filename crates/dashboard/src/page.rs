//! The page and its files. They are part of the program, and ask nobody else for anything.

use axum::extract::{OriginalUri, Path};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse, Response};

const PAGE: &str = include_str!("../assets/page.html");

macro_rules! files {
    ($($name:literal)*) => {
        /// Every file, by its name.
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../assets/", $name)))),*];
    };
}

files! {
    "page.css" "icon.svg" "main.js" "api.js" "dom.js" "words.js" "chart.js" "dialog.js" "table.js"
    "overview.js" "events.js" "event.js" "dead.js" "work.js" "activity.js"
}

/// Works under any path: where it has no slash at its end, the files are one step further down.
pub(crate) async fn show(OriginalUri(uri): OriginalUri) -> Html<String> {
    let last = uri.path().rsplit('/').next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.~%".contains(c);
    let base = match last {
        "" => String::new(),
        last if last.chars().all(is_plain) => format!("<base href=\"{last}/\">"),
        _ => String::new(),
    };
    Html(PAGE.replace("<!--base-->", &base))
}

pub(crate) async fn asset(Path(name): Path<String>) -> Response {
    let Some((name, content)) = FILES.iter().find(|(known, _)| *known == name) else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    let kind = match name.rsplit_once('.') {
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    };
    ([(CONTENT_TYPE, kind)], *content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_ask_nobody_else() {
        for (name, content) in FILES.iter().copied().chain([("page.html", PAGE)]) {
            let content = content.replace("http://www.w3.org/2000/svg", "");
            for outside in ["http://", "https://", "//cdn", "@import", "url("] {
                assert!(!content.contains(outside), "{name}: {outside}");
            }
        }
    }

    #[test]
    fn the_page_never_writes_markup_it_was_sent() {
        for (name, content) in FILES {
            for dangerous in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "style=",
            ] {
                assert!(!content.contains(dangerous), "{name}: {dangerous}");
            }
        }
    }

    #[test]
    fn every_file_that_is_there_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(name == "page.html" || FILES.iter().any(|(known, _)| *known == name), "{name}");
        }
    }
}

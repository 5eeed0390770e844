//! The page: one file with its script and style inside, so that it works under any path.

use axum::response::Html;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("../assets/page.html");

pub(crate) async fn show() -> Html<&'static str> {
    Html(PAGE)
}

/// The content of the page's only `element`, as a source of a content security policy.
pub(crate) fn hash_of(element: &str) -> String {
    let content = content_of(element).unwrap_or_default();
    format!("sha256-{}", STANDARD.encode(Sha256::digest(content)))
}

fn content_of(element: &str) -> Option<&'static str> {
    let (_, rest) = PAGE.split_once(&format!("<{element}>"))?;
    rest.split_once(&format!("</{element}>")).map(|(content, _)| content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_script_and_one_style_and_asks_nobody_else() {
        for element in ["script", "style"] {
            assert!(content_of(element).is_some_and(|content| content.len() > 100), "{element}");
            assert_eq!(PAGE.matches(&format!("<{element}")).count(), 1, "{element}");
        }
        for outside in ["http://", "https://", "//cdn", "src=", "@import", "url("] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
    }

    #[test]
    fn the_page_never_writes_markup_it_was_sent() {
        for dangerous in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
        {
            assert!(!PAGE.contains(dangerous), "{dangerous}");
        }
    }
}

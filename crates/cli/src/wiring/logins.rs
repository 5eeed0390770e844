//! Keys that mean nothing one without the other.

use crate::config::Section;

/// `user` and `password`, instead of those in the URL.
#[cfg(any(feature = "mqtt", feature = "nats", feature = "rabbitmq"))]
pub(super) fn login(section: &mut Section<'_>) -> Option<(String, semel_core::Secret)> {
    let (user, password) = (section.optional("user"), section.secret("password"));
    both_or_neither(section, ["user", "password"]);
    user.zip(password)
}

/// The same of Redis, where a password alone is that of the user `default`, unless the URL names
/// another one.
#[cfg(feature = "redis")]
pub(super) fn redis_login(
    section: &mut Section<'_>,
    url: Option<&semel_core::Secret>,
) -> Option<(String, semel_core::Secret)> {
    let (user, password) = (section.optional("user"), section.secret("password"));
    if section.has("user") || url.is_some_and(|url| names_user(url.reveal())) {
        both_or_neither(section, ["user", "password"]);
        return user.zip(password);
    }
    password.map(|password| ("default".to_owned(), password))
}

#[cfg(feature = "redis")]
fn names_user(url: &str) -> bool {
    let behind_scheme = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = behind_scheme.split(['/', '?', '#']).next().unwrap_or_default();
    let who = authority.rsplit_once('@').map_or("", |(who, _)| who);
    !who.is_empty() && !who.starts_with(':')
}

/// Says which of two keys is missing beside the other one. Either may be that of a secret, which can
/// be in a file of its own.
pub(crate) fn both_or_neither(section: &Section<'_>, keys: [&str; 2]) {
    let found = keys.map(|key| {
        [key.to_owned(), format!("{key}_file")].into_iter().find(|key| section.has(key))
    });
    if let ([Some(lonely), None], [_, missing]) | ([None, Some(lonely)], [missing, _]) =
        (&found, keys)
    {
        section.wrong(lonely, &format!("needs {missing} beside it, and the other way round"));
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_a_url_is_seen() {
        for url in ["redis://shop@host", "redis://shop:se:cret@host:6379/0", "rediss://a@h?x=/@"] {
            assert!(names_user(url), "{url}");
        }
        for url in ["redis://host", "redis://:secret@host", "redis://host/@", "shop@host", ""] {
            assert!(!names_user(url), "{url}");
        }
    }
}

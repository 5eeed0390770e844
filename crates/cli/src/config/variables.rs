//! `${NAME}` and `${NAME:-default}` inside strings. Only values are expanded, never the document
//! itself, so a value with quotes or line breaks cannot change its structure.

/// The text with every variable replaced by its value.
pub(super) fn expand(
    text: &str,
    variables: &dyn Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, inside)) = rest.split_once("${") {
        let (name, after) = inside.split_once('}').ok_or("a ${ without its }: write ${NAME}")?;
        expanded.push_str(before);
        expanded.push_str(&value(name, variables)?);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// The variables that a text is made of.
pub(super) fn names(text: &str) -> Vec<String> {
    let inside = text.split("${").skip(1).filter_map(|rest| rest.split('}').next());
    inside.filter_map(|inside| inside.split(":-").next()).map(str::to_owned).collect()
}

fn value(inside: &str, variables: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let set = variables(name).filter(|value| !(value.is_empty() && default.is_some()));
    set.or_else(|| default.map(str::to_owned)).ok_or_else(|| {
        format!("the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_where_they_stand() {
        let variables = |name: &str| match name {
            "USER" => Some("me".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        let cases = [
            ("plain $5 {x}", Ok("plain $5 {x}")),
            ("${USER}:${USER}@db", Ok("me:me@db")),
            ("${NOBODY:-anna}", Ok("anna")),
            ("${EMPTY:-anna}", Ok("anna")),
            ("a${EMPTY}b", Ok("ab")),
            ("${NOBODY:-}", Ok("")),
            ("${USER", Err("a ${ without its }: write ${NAME}")),
        ];
        for (text, expected) in cases {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(expand(text, &variables), expected, "{text}");
        }
        assert!(expand("${NOBODY}", &variables).unwrap_err().contains("NOBODY is not set"));
    }
}

//! The shell commands of the documentation, for the tests that read, parse or run them.

use std::fs;
use std::path::{Path, PathBuf};

/// The pages of this repository, by their paths in it.
pub(crate) fn pages() -> Vec<(String, String)> {
    let root = root();
    let mut paths = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    add_pages(&root.join("docs"), &mut paths);
    paths.sort();
    let page = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        (name, fs::read_to_string(path).unwrap())
    };
    paths.into_iter().map(page).collect()
}

pub(crate) fn root() -> PathBuf {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.find(|folder| folder.join("dev").is_file()).unwrap().to_owned()
}

fn add_pages(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_pages(&path, paths);
        } else if path.extension().is_some_and(|end| end == "md") {
            paths.push(path);
        }
    }
}

/// The blocks of code of these languages, in the order of the page.
pub(crate) fn blocks<'a>(page: &'a str, languages: &[&str]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for (number, part) in page.split("```").enumerate() {
        if let Some((language, text)) = part.split_once('\n')
            && !number.is_multiple_of(2)
            && languages.contains(&language.trim())
        {
            found.push(text);
        }
    }
    found
}

/// Every command that a page tells its reader to type.
pub(crate) fn commands_of(page: &str) -> Vec<String> {
    blocks(page, &["sh", "bash", "shell", "console"]).into_iter().flat_map(commands).collect()
}

/// Every command in a sentence, from the code of its lines.
#[allow(dead_code, reason = "not every test reads sentences")]
pub(crate) fn commands_in_sentences(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2);
    prose.flat_map(str::lines).flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// The commands of a block: where lines begin with a prompt, those; otherwise all. A command may go
/// on in the next line, inside quotes or after a backslash.
pub(crate) fn commands(block: &str) -> Vec<String> {
    let prompted: Vec<_> = block.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let lines = if prompted.is_empty() { block.lines().collect() } else { prompted };
    let (mut all, mut begun) = (Vec::new(), String::new());
    for line in lines.into_iter().filter(|line| !line.trim().is_empty()) {
        begun = if begun.is_empty() { line.to_owned() } else { format!("{begun}\n{line}") };
        let quotes = begun.replace("\\\"", "").matches('"').count();
        if quotes.is_multiple_of(2) && !begun.ends_with('\\') {
            all.push(std::mem::take(&mut begun));
        }
    }
    assert_eq!(begun, "", "a quote is not closed");
    all
}

/// The words of a command up to its end, a pipe, a redirection or a comment; without the variables
/// that are set for it.
pub(crate) fn words(command: &str) -> Vec<String> {
    let (mut words, mut word): (Vec<String>, Option<String>) = (Vec::new(), None);
    let (mut quote, mut chars) = (None, command.chars());
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => match chars.next() {
                Some('\n') | None => {}
                Some(next) => word.get_or_insert_default().push(next),
            },
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('|' | '>' | '<' | '&' | ';', None) => break,
            ('#', None) if word.is_none() => break,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    let is_variable = |word: &String| {
        word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        })
    };
    let first = words.iter().position(|word| !is_variable(word)).unwrap_or(words.len());
    words.split_off(first)
}

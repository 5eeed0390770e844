//! What was probably meant.

/// What was probably meant, or what there is.
pub(super) fn hint(word: &str, words: &[&str]) -> String {
    match nearest(word, words) {
        Some(word) => format!("; did you mean {word:?}?"),
        None if words.is_empty() => String::new(),
        None => format!("; there is {}", words.join(", ")),
    }
}

/// The word that was probably meant: one slip away, or a few in a long word.
pub(crate) fn nearest<'w>(word: &str, words: &[&'w str]) -> Option<&'w str> {
    let slips = |known: &&'w str| (strsim::damerau_levenshtein(word, known), *known);
    let (slips, best) = words.iter().map(slips).min()?;
    (slips <= 1 + best.len() / 4).then_some(best)
}

//! Roles: a file has none.

use semel_core::Failure;

/// Says, as a comment, that there is nothing to grant.
///
/// # Errors
/// None: the same signature for every database.
///
/// ```
/// # use semel_backends::sqlite::grants_sql;
/// assert!(grants_sql("semel")?.starts_with("-- SQLite has no roles"));
/// # Ok::<(), semel_core::Failure>(())
/// ```
pub fn grants_sql(_prefix: &str) -> Result<String, Failure> {
    Ok("-- SQLite has no roles: who may write the file may do everything, who may only read it may\n\
        -- read everything, payloads too. Use the permissions of the file and of its folder.\n"
        .to_owned())
}

//! The text of a configuration: one file, or all files of a folder.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A file of the configuration.
#[derive(Clone, Debug)]
pub(super) struct File {
    /// As the user calls it.
    pub(super) name: String,
    pub(super) text: String,
}

/// The file, or every `*.toml` of the folder in the order of their names. Files that begin with a
/// dot belong to editors and to those who copy.
pub(super) fn read(path: &Path) -> io::Result<Vec<File>> {
    if !path.is_dir() {
        return Ok(vec![File {
            text: fs::read_to_string(path)?,
            name: path.display().to_string(),
        }]);
    }
    let paths = toml_files(path)?;
    if paths.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the folder has no file *.toml"));
    }
    paths
        .into_iter()
        .map(|path| {
            let name = path.display().to_string();
            let text = fs::read_to_string(&path);
            let text =
                text.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")));
            Ok(File { text: text?, name })
        })
        .collect()
}

fn toml_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        !name.starts_with('.') && path.extension().is_some_and(|end| end == "toml")
    };
    let all: io::Result<Vec<PathBuf>> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect();
    let mut files: Vec<_> =
        all?.into_iter().filter(|path| is_ours(path) && path.is_file()).collect();
    files.sort();
    Ok(files)
}

//! The database files of the demo: one per service, as services have them.

use std::path::{Path, PathBuf};

use semel_backends::sqlite::{Durability, SqliteConfig, SqliteStore};
use semel_core::Failure;
use tempfile::TempDir;

use super::consumers::Department;
use super::service;

/// A folder with the files of all services.
#[derive(Debug)]
pub(super) struct Databases {
    folder: TempDir,
}

impl Databases {
    /// Makes the files and their tables.
    pub(super) async fn create(keep: bool) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("semel-demo-")
            .disable_cleanup(keep)
            .tempdir()
            .map_err(|error| {
                Failure::unavailable("E-DEMO-FOLDER", "cannot make a temporary folder")
                    .with_source(error)
                    .with_fix("set TMPDIR to a folder with free space that you may write to")
            })?;
        let databases = Self { folder };
        let schemas = Department::ALL.map(|department| (department.name(), department.schema()));
        for (name, schema) in [(service::NAME, service::SCHEMA)].into_iter().chain(schemas) {
            let store = databases.open(name).await?;
            store.migrate().await?;
            let mut tx = store.begin().await?;
            sqlx::raw_sql(schema).execute(&mut *tx).await.map_err(sql_failure)?;
            tx.commit().await.map_err(sql_failure)?;
        }
        Ok(databases)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder().join(name).with_extension("db")
    }

    /// Opens a file anew, as a process does that starts.
    pub(super) async fn open(&self, name: &str) -> Result<SqliteStore, Failure> {
        let path = self.file(name).display().to_string().replace('%', "%25").replace('?', "%3F");
        let config = SqliteConfig::new(&format!("sqlite://{path}"))?;
        config.durability(Durability::ProcessCrash).readers(1).connect().await
    }
}

/// What an error in the demo's own SQL means.
pub(super) fn sql_failure(error: sqlx::Error) -> Failure {
    Failure::transient("E-DEMO-SQL", "a statement of the demo failed").with_source(error)
}

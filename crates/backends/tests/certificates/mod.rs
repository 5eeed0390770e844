//! Keys, and certificates that they signed themselves, in files that a server of any user may read.

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;

/// A folder of them; gone with this value.
pub(crate) struct Certificates(TempDir);

impl Certificates {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    /// The files of a host's key and of its certificate.
    pub(crate) fn of(&self, host: &str) -> (PathBuf, PathBuf) {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed([host.to_owned()]).unwrap();
        let file = |kind: &str| self.0.path().join(format!("{host}.{kind}"));
        let (key, certificate) = (file("key"), file("pem"));
        write(&key, signing_key.serialize_pem()).unwrap();
        write(&certificate, cert.pem()).unwrap();
        (key, certificate)
    }
}

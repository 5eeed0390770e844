//! Which cryptography TLS is done with.

/// Makes ring the provider of the process, unless it has one. Several client libraries ask for that,
/// and panic when two providers are compiled in and nobody has chosen.
pub(crate) fn choose_provider() {
    #[cfg(feature = "tls")]
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Whoever was faster has chosen.
        rustls::crypto::ring::default_provider().install_default().ok();
    }
}

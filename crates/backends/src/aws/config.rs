//! Region, endpoint and credentials.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use semel_core::wire::Format;
use semel_core::{Failure, Secret};
use tokio::time::timeout;

use super::error::{Expiry, no_credentials, timed_out};
use super::eventbridge::EventBridge;
use super::sink::{AwsSink, Service};
use super::sns::Sns;
use super::sqs::Sqs;
use super::subscription::SqsSubscriptionConfig;

/// Region, endpoint and credentials; whatever is not set comes from where AWS programs look for it:
/// the environment, the profile, a web identity, the container or the machine.
///
/// ```
/// use semel_backends::aws::AwsConfig;
/// use semel_core::Secret;
///
/// let config = AwsConfig::new()
///     .region("eu-central-1")
///     .credentials("AKIAIOSFODNN7EXAMPLE", Secret::new("hunter2"), None);
/// assert!(!format!("{config:?}").contains("hunter2"));
/// ```
#[derive(Clone)]
pub struct AwsConfig {
    region: Option<String>,
    endpoint_url: Option<String>,
    credentials: Option<(String, Secret, Option<Secret>)>,
    pub(super) format: Option<Format>,
    pub(super) max_message_bytes: Option<usize>,
    pub(super) concurrency: usize,
    pub(super) timeout: Duration,
}

impl Default for AwsConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl AwsConfig {
    /// All of it from where AWS programs look for it.
    #[must_use]
    pub fn new() -> Self {
        Self {
            region: None,
            endpoint_url: None,
            credentials: None,
            format: None,
            max_message_bytes: None,
            concurrency: 8,
            timeout: Duration::from_secs(25),
        }
    }

    /// The region, such as `eu-central-1`.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Another address than the region's own: a VPC endpoint, or a server that speaks like AWS.
    #[must_use]
    pub fn endpoint_url(mut self, url: impl Into<String>) -> Self {
        self.endpoint_url = Some(url.into());
        self
    }

    /// Fixed credentials. A session token runs out and is not renewed.
    #[must_use]
    pub fn credentials(
        mut self,
        access_key_id: impl Into<String>,
        secret_access_key: Secret,
        session_token: Option<Secret>,
    ) -> Self {
        self.credentials = Some((access_key_id.into(), secret_access_key, session_token));
        self
    }

    /// How an event looks in a message: `Plain` in SQS and SNS unless set,
    /// `CloudEventsStructured` in EventBridge.
    ///
    /// # Errors
    /// `Misconfigured` for `CloudEventsBinary`, which is not defined for AWS.
    pub fn format(mut self, format: Format) -> Result<Self, Failure> {
        if format == Format::CloudEventsBinary {
            let what = "AWS: cloudevents-binary is not defined for these services";
            return Err(Failure::misconfigured("E-AWS-FORMAT", what)
                .with_fix("use plain or cloudevents-structured"));
        }
        self.format = Some(format);
        Ok(self)
    }

    /// Larger messages are refused before they are sent: 1 MiB in SQS unless set, 256 KiB in SNS,
    /// 1,000,000 bytes in EventBridge. It is the limit of a batch, too.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = Some(bytes);
        self
    }

    /// How many requests of one publish call may be under way at once; 8 unless set.
    #[must_use]
    pub fn concurrency(mut self, count: usize) -> Self {
        self.concurrency = count.max(1);
        self
    }

    /// How long one publish call may take in all; 25 seconds unless set. Keep it below the relay's
    /// `publish_timeout`: then a service that hangs is an outage, and no failed attempt of the events.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// A sink to SQS: the topic is the name of the queue, or its URL.
    ///
    /// # Errors
    /// `Misconfigured` when there is no region or there are no credentials.
    pub async fn connect_sqs(self) -> Result<AwsSink, Failure> {
        self.connect(|sdk, expiry| Arc::new(Sqs::new(sdk, expiry))).await
    }

    /// A sink to SNS: the topic is an ARN, or what comes after this prefix in one
    /// (`arn:aws:sns:eu-central-1:123456789012:`).
    ///
    /// # Errors
    /// `Misconfigured` when there is no region or there are no credentials.
    pub async fn connect_sns(self, arn_prefix: Option<String>) -> Result<AwsSink, Failure> {
        self.connect(|sdk, expiry| Arc::new(Sns::new(sdk, arn_prefix, expiry))).await
    }

    /// A sink to EventBridge: the topic is the name or ARN of the bus. Events come from `source`, or
    /// else from their aggregate type.
    ///
    /// # Errors
    /// `Misconfigured` when there is no region or there are no credentials.
    pub async fn connect_eventbridge(self, source: Option<String>) -> Result<AwsSink, Failure> {
        self.connect(|sdk, expiry| Arc::new(EventBridge::new(sdk, source, expiry))).await
    }

    /// A queue of SQS to read, by its name or URL.
    #[must_use]
    pub fn subscribe_sqs(self, queue: impl Into<String>) -> SqsSubscriptionConfig {
        SqsSubscriptionConfig::new(self, queue.into())
    }

    async fn connect(
        self,
        service: impl FnOnce(&SdkConfig, Expiry) -> Arc<dyn Service>,
    ) -> Result<AwsSink, Failure> {
        let (sdk, expiry) = self.load_in_time().await?;
        Ok(AwsSink::new(self, service(&sdk, expiry)))
    }

    pub(super) async fn load_in_time(&self) -> Result<(SdkConfig, Expiry), Failure> {
        let loading = timeout(self.timeout, self.load()).await;
        let sdk = loading.unwrap_or_else(|_| Err(timed_out(self.timeout)))?;
        let expiry =
            if self.credentials.is_some() { Expiry::ForGood } else { Expiry::UntilRenewed };
        Ok((sdk, expiry))
    }

    /// Finds region and credentials. The service itself is not asked: it may be down for now.
    async fn load(&self) -> Result<SdkConfig, Failure> {
        let https = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
        // The relay tries again, by its own schedule.
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(https)
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().operation_timeout(self.timeout).build());
        if let Some(region) = self.region.clone() {
            loader = loader.region(Region::new(region));
        }
        if let Some(url) = &self.endpoint_url {
            loader = loader.endpoint_url(url);
        }
        if let Some((id, secret, token)) = &self.credentials {
            let token = token.as_ref().map(|token| token.reveal().to_owned());
            loader =
                loader.credentials_provider(Credentials::from_keys(id, secret.reveal(), token));
        }
        complete(loader.load().await).await
    }
}

/// Whether everything was found that is needed.
async fn complete(sdk: SdkConfig) -> Result<SdkConfig, Failure> {
    if sdk.region().is_none() {
        return Err(Failure::misconfigured("E-AWS-REGION", "AWS: no region is set")
            .with_fix("set region, or AWS_REGION"));
    }
    match sdk.credentials_provider() {
        None => Err(no_credentials(None)),
        Some(provider) => match provider.provide_credentials().await {
            Ok(_) => Ok(sdk),
            Err(error) => Err(no_credentials(Some(error))),
        },
    }
}

impl fmt::Debug for AwsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsConfig")
            .field("region", &self.region)
            .field("endpoint_url", &self.endpoint_url)
            .field("access_key_id", &self.credentials.as_ref().map(|(id, ..)| id))
            .field("format", &self.format)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("concurrency", &self.concurrency)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Fault;

    use super::*;

    #[tokio::test]
    async fn without_region_or_credentials_there_is_no_sink() {
        let region = Some(Region::new("eu-central-1"));
        let cases = [(None, "E-AWS-REGION"), (region, "E-AWS-CREDENTIALS")];
        for (region, code) in cases {
            let sdk = SdkConfig::builder().region(region).build();
            let failure = complete(sdk).await.unwrap_err();
            assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, code));
            assert!(failure.fix().is_some());
        }
    }
}

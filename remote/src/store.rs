//! A bucket or web server, reached as the environment says.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    ClientConfigKey, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt,
    RetryConfig,
};

use crate::address::{AddressProblem, Place, Scheme};
use crate::environment::Environment;
use crate::error::{Missing, RemoteError};
use crate::http_client::{HttpFailure, RetryingConnector};
use crate::runtime::RemoteRuntime;

/// A bucket or web server.
pub(crate) struct RemoteStore {
    place: Place,
    store: Arc<dyn ObjectStore>,
    runtime: RemoteRuntime,
}

impl RemoteStore {
    /// Asks no server yet.
    pub(crate) fn open(
        place: &Place,
        environment: &Environment,
        connector: RetryingConnector,
    ) -> Result<Self, RemoteError> {
        let store = build(place, environment, connector).map_err(|error| {
            RemoteError::Credentials { scheme: place.scheme, reason: error.to_string() }
        })?;
        let runtime = RemoteRuntime::new();
        let runtime = runtime.map_err(|error| RemoteError::Other { reason: error.to_string() })?;
        Ok(Self { place: place.clone(), store, runtime })
    }

    fn path(&self, key: &str) -> Result<Path, RemoteError> {
        let path = match self.place.scheme {
            Scheme::Web => Path::from_url_path(key),
            Scheme::S3 | Scheme::Gs | Scheme::Az => Path::parse(key),
        };
        path.map_err(|_| RemoteError::Address { problem: AddressProblem::Key })
    }

    /// Length and version of an object; none if there is no such object.
    pub(crate) fn head(&self, key: &str) -> Result<Option<ObjectMeta>, RemoteError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let path = self.path(key)?;
        match self.runtime.wait_for(self.store.get_opts(&path, options)) {
            Ok(result) => Ok(Some(result.meta)),
            Err(error) if status_of(&error) == Some(404) => Ok(None),
            Err(error) => Err(self.error(&error)),
        }
    }

    /// Calls `visit` with each object below a folder, which is empty or ends with a slash.
    pub(crate) fn list(
        &self,
        folder: &str,
        visit: &mut dyn FnMut(ObjectMeta) -> Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        let prefix = match folder.strip_suffix('/') {
            Some(folder) => Some(self.path(folder)?),
            None => None,
        };
        let mut objects = self.store.list(prefix.as_ref());
        while let Some(object) = self.runtime.wait_for(objects.try_next()).transpose() {
            visit(object.map_err(|error| self.error(&error))?)?;
        }
        Ok(())
    }

    /// Bytes of an object, and its length and version as they are now.
    pub(crate) fn read(
        &self,
        key: &str,
        range: Range<u64>,
        if_match: Option<String>,
    ) -> Result<ReadRange, RemoteError> {
        let range = Some(GetRange::Bounded(range));
        let options = GetOptions { range, if_match, ..GetOptions::default() };
        let path = self.path(key)?;
        let read = self.runtime.wait_for(async {
            let result = self.store.get_opts(&path, options).await?;
            let meta = result.meta.clone();
            Ok(ReadRange::Bytes(meta, result.bytes().await?))
        });
        match read {
            // The version differs, or the object is shorter than where the range begins.
            Err(error) if matches!(status_of(&error), Some(412 | 416)) => Ok(ReadRange::Other),
            read => read.map_err(|error| self.error(&error)),
        }
    }

    /// Writes an object.
    pub(crate) fn put(&self, key: &str, bytes: Bytes) -> Result<(), RemoteError> {
        let path = self.path(key)?;
        let put = self.runtime.wait_for(self.store.put(&path, bytes.into()));
        put.map(drop).map_err(|error| self.error(&error))
    }

    /// Removes an object, if it is there.
    pub(crate) fn remove(&self, key: &str) -> Result<(), RemoteError> {
        let path = self.path(key)?;
        match self.runtime.wait_for(self.store.delete(&path)) {
            Ok(()) => Ok(()),
            // Servers answer differently where there was no such object.
            Err(error) => match self.head(key)? {
                None => Ok(()),
                Some(_) => Err(self.error(&error)),
            },
        }
    }

    /// What an error of `object_store` means.
    fn error(&self, error: &object_store::Error) -> RemoteError {
        let scheme = self.place.scheme;
        let Some(failure) = HttpFailure::find(error) else {
            return RemoteError::Other { reason: error.to_string() };
        };
        let reason = failure.to_string();
        match failure.clone() {
            HttpFailure::Status { status, code } => self.refusal(status, code.as_deref(), reason),
            HttpFailure::Unavailable { host, reason, attempts, waited } => {
                RemoteError::Unavailable { host, reason, attempts, waited }
            }
            HttpFailure::Metadata { .. } => RemoteError::Credentials { scheme, reason },
            HttpFailure::NoRanges { host } => RemoteError::NoRanges { host },
            HttpFailure::Transport { host, reason } => {
                RemoteError::Other { reason: format!("{host}: {reason}") }
            }
            HttpFailure::Stopped => RemoteError::Stopped,
        }
    }

    fn refusal(&self, status: u16, code: Option<&str>, reason: String) -> RemoteError {
        let scheme = self.place.scheme;
        match (status, code) {
            (404, code) => self.missing(match (scheme, code) {
                (_, Some("NoSuchBucket" | "ContainerNotFound")) => Missing::Bucket,
                (Scheme::Web, _) => Missing::File,
                (Scheme::S3 | Scheme::Gs | Scheme::Az, _) => Missing::Key,
            }),
            (401 | 403, _) | (400, Some("ExpiredToken" | "InvalidToken")) => {
                RemoteError::Denied { scheme, reason }
            }
            (301 | 307 | 308, _) | (400, Some("AuthorizationHeaderMalformed")) => {
                let reason = format!("{reason}: it is in another region, or at another endpoint");
                RemoteError::Other { reason }
            }
            _ => RemoteError::Other { reason },
        }
    }

    pub(crate) fn missing(&self, missing: Missing) -> RemoteError {
        RemoteError::NotFound { place: self.place.to_string(), missing }
    }
}

/// What came of a range.
pub(crate) enum ReadRange {
    /// Its bytes, and length and version of the whole object.
    Bytes(ObjectMeta, Bytes),
    /// Nothing: the object has another version.
    Other,
}

fn status_of(error: &object_store::Error) -> Option<u16> {
    match HttpFailure::find(error)? {
        HttpFailure::Status { status, .. } => Some(*status),
        HttpFailure::Unavailable { .. }
        | HttpFailure::Metadata { .. }
        | HttpFailure::NoRanges { .. }
        | HttpFailure::Transport { .. }
        | HttpFailure::Stopped => None,
    }
}

fn build(
    place: &Place,
    environment: &Environment,
    connector: RetryingConnector,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    Ok(match place.scheme {
        Scheme::S3 => Arc::new(build_s3(place, environment, connector)?),
        Scheme::Gs => Arc::new(build_gs(place, environment, connector)?),
        Scheme::Az => Arc::new(build_az(place, environment, connector)?),
        Scheme::Web => Arc::new(build_web(place, connector)?),
    })
}

/// `RetryingConnector` does it, which can be seen.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Host and port of an endpoint that was named with plain HTTP, such as MinIO's of a laboratory.
fn plain_host(endpoint: Option<String>) -> Option<String> {
    let rest = endpoint.as_deref()?.strip_prefix("http://")?;
    Some(rest.split('/').next().unwrap_or(rest).to_owned())
}

fn build_s3(
    place: &Place,
    environment: &Environment,
    mut connector: RetryingConnector,
) -> object_store::Result<impl ObjectStore> {
    let mut builder = AmazonS3Builder::new().with_bucket_name(&place.bucket);
    for (key, value) in environment.settings::<AmazonS3ConfigKey>("AWS_") {
        builder = builder.with_config(key, value);
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::S3Endpoint);
    let endpoint = endpoint.or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    connector.plain_host = plain_host(endpoint);
    let builder = builder.with_allow_http(connector.plain_host.is_some());
    builder.with_retry(no_retries()).with_http_connector(connector).build()
}

fn build_gs(
    place: &Place,
    environment: &Environment,
    mut connector: RetryingConnector,
) -> object_store::Result<impl ObjectStore> {
    let mut builder = GoogleCloudStorageBuilder::new().with_bucket_name(&place.bucket);
    for (key, value) in environment.settings::<GoogleConfigKey>("GOOGLE_") {
        builder = builder.with_config(key, value);
    }
    connector.plain_host = plain_host(builder.get_config_value(&GoogleConfigKey::BaseUrl));
    let key = GoogleConfigKey::Client(ClientConfigKey::AllowHttp);
    let builder = builder.with_config(key, connector.plain_host.is_some().to_string());
    builder.with_retry(no_retries()).with_http_connector(connector).build()
}

fn build_az(
    place: &Place,
    environment: &Environment,
    mut connector: RetryingConnector,
) -> object_store::Result<impl ObjectStore> {
    let mut builder = MicrosoftAzureBuilder::new().with_container_name(&place.bucket);
    // The names of Azure's own command line, which `object_store` does not know.
    let others = [
        ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
        ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
        ("IDENTITY_ENDPOINT", AzureConfigKey::MsiEndpoint),
    ];
    let others = others.into_iter().filter_map(|(name, key)| Some((key, environment.get(name)?)));
    for (key, value) in others.chain(environment.settings("AZURE_")) {
        builder = builder.with_config(key, value);
    }
    connector.plain_host = plain_host(builder.get_config_value(&AzureConfigKey::Endpoint));
    let builder = builder.with_allow_http(connector.plain_host.is_some());
    builder.with_retry(no_retries()).with_http_connector(connector).build()
}

fn build_web(
    place: &Place,
    mut connector: RetryingConnector,
) -> object_store::Result<impl ObjectStore> {
    connector.plain_host = plain_host(Some(place.bucket.clone()));
    connector.is_redirected = true;
    let query = place.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
    let options = ClientOptions::new().with_allow_http(connector.plain_host.is_some());
    let builder = HttpBuilder::new().with_url(format!("{}/{query}", place.bucket));
    let builder = builder.with_client_options(options).with_retry(no_retries());
    builder.with_http_connector(connector).build()
}

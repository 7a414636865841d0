//! Notices of clouds, from a metadata service of the test's own.

mod auto;
mod aws;
mod azure;
mod environment;
mod gcp;
mod mock;
mod trouble;
mod zone;

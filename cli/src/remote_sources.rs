//! Sources on other machines, for commands that read documents: the line that is printed while a server
//! is busy, and what a person reads when it stays so.

use std::ops::ControlFlow;
use std::sync::Arc;

use zbelastic_data::source::{SourceError, SourceListError};
use zbelastic_local::interrupt::Interrupt;
use zbelastic_remote::{
    AddressProblem, Environment, Missing, RemoteError, RemoteStorage, RetryEvent, RetryPolicy,
    Scheme,
};
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

use crate::progress::CommandProgress;

/// Local files, and what addresses name. A wait for a server is printed above the progress, and ends
/// with a request of `interrupt`.
pub fn source_storage(progress: &CommandProgress, interrupt: &Interrupt) -> RemoteStorage {
    let print = progress.line_printer();
    let interrupt = interrupt.clone();
    let on_retry = move |event: RetryEvent<'_>| {
        if let RetryEvent::Begins(notice) = event {
            print(&format!("note: {notice}"));
        }
        match interrupt.is_requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    RemoteStorage::new(Environment::of_process(), RetryPolicy::STANDARD, Arc::new(on_retry))
}

/// Whether the caller's interrupt ended a wait for a server.
pub fn is_stopped(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(RemoteError::find(error), Some(RemoteError::Stopped))
}

/// The failure of an address, if an error of sources is one. `place` is the address.
pub fn failure_of(
    place: &str,
    error: &(dyn std::error::Error + 'static),
) -> Option<CommandFailure> {
    Some(failure_at("the corpus has an error", place, RemoteError::find(error)?))
}

/// The failure of an address. `what` says what it is of.
pub fn failure_at(what: &str, place: &str, error: &RemoteError) -> CommandFailure {
    let detail = FailureDetail::new(error.to_string()).at(place.to_owned());
    let detail = match hint(error) {
        Some(hint) => detail.hint(hint),
        None => detail,
    };
    let code = match error {
        RemoteError::NotFound { .. } => FailureCode::NotFound,
        RemoteError::Stopped => FailureCode::Interrupted,
        RemoteError::Address { .. }
        | RemoteError::NoListing
        | RemoteError::Credentials { .. }
        | RemoteError::Denied { .. }
        | RemoteError::Unavailable { .. }
        | RemoteError::Changed { .. }
        | RemoteError::Short { .. }
        | RemoteError::NoRanges { .. }
        | RemoteError::TooMany { .. }
        | RemoteError::Other { .. } => FailureCode::Usage,
    };
    let mut failure = CommandFailure::new(code, what);
    failure.details = vec![detail];
    failure
}

fn hint(error: &RemoteError) -> Option<&'static str> {
    Some(match error {
        RemoteError::Address { problem } => address_hint(*problem),
        RemoteError::NoListing => "the address of each file, or a bucket (s3://, gs://, az://)",
        RemoteError::NotFound { missing, .. } => missing_hint(*missing),
        RemoteError::Credentials { scheme, .. } => credentials_hint(*scheme),
        RemoteError::Denied { scheme, .. } => denied_hint(*scheme),
        RemoteError::Unavailable { .. } => {
            "the same command later: what is finished is kept; or another endpoint"
        }
        RemoteError::Changed { .. } => {
            "the same command when nobody writes to it; a store that was begun of the earlier \
             object needs another --to"
        }
        RemoteError::Short { .. } => "the same command again: what is finished is kept",
        RemoteError::NoRanges { .. } => "download the file, and name it here",
        RemoteError::TooMany { .. } => "several entries, each a longer prefix",
        RemoteError::Other { .. } | RemoteError::Stopped => return None,
    })
}

fn address_hint(problem: AddressProblem) -> &'static str {
    match problem {
        AddressProblem::Scheme | AddressProblem::Bucket => {
            "such as s3://bucket/corpus/, 'gs://bucket/*.jsonl.gz' or https://host/book.txt"
        }
        AddressProblem::User => "leave out what stands before the @",
        AddressProblem::PlainHttp => "https://, or download the file",
        AddressProblem::ReadOnly => "s3://bucket/folder, gs://, az://, or a folder of the disk",
        AddressProblem::Key => "the key as the bucket's list has it",
        AddressProblem::Glob { .. } => "a pattern such as 's3://bucket/**/*.txt'",
    }
}

fn missing_hint(missing: Missing) -> &'static str {
    match missing {
        Missing::Key => "a key, a folder, or a glob in quotes, as the bucket's list has them",
        Missing::Gone => "the same command when nobody writes to it",
        Missing::Bucket => "another name, or the endpoint that has it",
        Missing::File => "the address that a browser downloads it from",
    }
}

fn credentials_hint(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => {
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, as `aws configure \
             export-credentials --format env` prints them; AWS_SKIP_SIGNATURE=true for a public \
             bucket"
        }
        Scheme::Gs => {
            "GOOGLE_APPLICATION_CREDENTIALS=FILE, or `gcloud auth application-default login`; \
             GOOGLE_SKIP_SIGNATURE=true for a public bucket"
        }
        Scheme::Az => {
            "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN; \
             AZURE_SKIP_SIGNATURE=true for a public container"
        }
        Scheme::Web => "an address that needs none",
    }
}

fn denied_hint(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => "credentials that may list the bucket and read its objects, not expired",
        Scheme::Gs => "an account with the role Storage Object Viewer of the bucket",
        Scheme::Az => "a key or token that may list and read the container, not expired",
        Scheme::Web => "an address that needs no login, such as a signed one that is not expired",
    }
}

/// A source that cannot be read, if it is no local one.
pub fn failure_of_source(error: &SourceError) -> Option<CommandFailure> {
    match error {
        SourceError::Io { file, .. } | SourceError::Parquet { file, .. } => failure_of(file, error),
        SourceError::Bad { .. }
        | SourceError::NotUtf8 { .. }
        | SourceError::NoColumn { .. }
        | SourceError::TokenCount { .. }
        | SourceError::TokenVersion { .. }
        | SourceError::EmptySeparator => None,
    }
}

/// Entries that give no files, if they are no local ones.
pub fn failure_of_list(error: &SourceListError) -> Option<CommandFailure> {
    match error {
        SourceListError::Unreadable { path, .. } => failure_of(path, error),
        SourceListError::NotFound { .. }
        | SourceListError::Glob { .. }
        | SourceListError::NothingMatched { .. }
        | SourceListError::Format { .. } => None,
    }
}

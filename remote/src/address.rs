//! What an entry of the sources names, if it is no path of the local disk. Nothing here asks a server.

use std::fmt;

/// The kinds of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// Amazon S3, and what speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage.
    Az,
    /// A web server.
    Web,
}

/// Where an object, or a folder or glob of objects, lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) place: Place,
    /// What stands behind the bucket: `/`-separated names, without the first `/`.
    pub(crate) key: String,
}

/// A bucket, or a web server with the query of a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) scheme: Scheme,
    /// The bucket or container; of a web server its scheme, host and port.
    pub(crate) bucket: String,
    /// Of a web server's URL: what stands behind the `?`, often a signature. It is never printed.
    pub(crate) query: Option<String>,
}

/// Why an entry is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressProblem {
    /// No known scheme.
    #[error("is no address of a known kind (s3://, gs://, az://, https://)")]
    Scheme,
    /// No bucket or host.
    #[error("names no bucket or host")]
    Bucket,
    /// A user or password within the address.
    #[error("has a user in it; credentials come from the environment")]
    User,
    /// Plain HTTP to another machine.
    #[error("would be read over plain http:// from another machine, where anybody can change it")]
    PlainHttp,
    /// A place that is only read.
    #[error("is a web server's, which is not written to")]
    ReadOnly,
    /// A name that no object may have here, such as `..`.
    #[error("has an empty name, . or .. between its slashes")]
    Key,
    /// A pattern that is no glob.
    #[error("is no glob: {reason}")]
    Glob {
        /// Why not.
        reason: &'static str,
    },
}

const SEPARATOR: &str = "://";
const SCHEMES: [(&str, Scheme); 5] = [
    ("s3", Scheme::S3),
    ("gs", Scheme::Gs),
    ("az", Scheme::Az),
    ("https", Scheme::Web),
    ("http", Scheme::Web),
];

/// Whether an entry is to be read as an address. No path of a file has this in its beginning.
#[must_use]
pub fn is_address(entry: &str) -> bool {
    entry.split_once(SEPARATOR).is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

impl Address {
    pub(crate) fn parse(entry: &str) -> Result<Self, AddressProblem> {
        let (name, rest) = entry.split_once(SEPARATOR).ok_or(AddressProblem::Scheme)?;
        let found = SCHEMES.into_iter().find(|(known, _)| *known == name);
        let scheme = found.ok_or(AddressProblem::Scheme)?.1;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(AddressProblem::Bucket);
        }
        if bucket.contains('@') {
            return Err(AddressProblem::User);
        }
        let place = |bucket: String, query| Place { scheme, bucket, query };
        if scheme != Scheme::Web {
            return Ok(Self { place: place(bucket.to_owned(), None), key: key.to_owned() });
        }
        if name == "http" && !is_loopback(bucket) {
            return Err(AddressProblem::PlainHttp);
        }
        let without_fragment = key.split('#').next().unwrap_or_default();
        let (key, query) = match without_fragment.split_once('?') {
            Some((key, query)) => (key, Some(query.to_owned())),
            None => (without_fragment, None),
        };
        let bucket = format!("{name}{SEPARATOR}{bucket}");
        Ok(Self { place: place(bucket, query), key: key.to_owned() })
    }

    /// The address of another key of the same place.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self { place: self.place.clone(), key: key.to_owned() }
    }

    /// The address with its query, which [`Address::parse`] reads again.
    pub(crate) fn canonical(&self) -> String {
        match &self.place.query {
            Some(query) => format!("{self}?{query}"),
            None => self.to_string(),
        }
    }
}

/// Without the query, so that a signature in it is not printed.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.place, self.key)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::S3 => write!(f, "s3://{}", self.bucket),
            Scheme::Gs => write!(f, "gs://{}", self.bucket),
            Scheme::Az => write!(f, "az://{}", self.bucket),
            Scheme::Web => f.write_str(&self.bucket),
        }
    }
}

/// Whether an authority, a host with or without a port, is this machine itself.
pub(crate) fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::{Address, AddressProblem, Scheme, is_address};

    #[test]
    fn addresses_have_a_place_and_a_key() {
        let check = |entry: &str, scheme, bucket: &str, key: &str, query: Option<&str>| {
            let found = Address::parse(entry).expect("an address");
            let place = &found.place;
            let parts = (place.scheme, &*place.bucket, &*found.key, place.query.as_deref());
            assert_eq!(parts, (scheme, bucket, key, query), "{entry}");
            assert_eq!(Address::parse(&found.canonical()), Ok(found), "{entry}");
        };
        check("s3://b/a/c.txt", Scheme::S3, "b", "a/c.txt", None);
        check("s3://b", Scheme::S3, "b", "", None);
        check("gs://b/a b?.txt", Scheme::Gs, "b", "a b?.txt", None);
        check("az://container/a/", Scheme::Az, "container", "a/", None);
        check("https://h.org/a.txt?x=1#y", Scheme::Web, "https://h.org", "a.txt", Some("x=1"));
        check("http://127.0.0.1:80/a", Scheme::Web, "http://127.0.0.1:80", "a", None);
        check("http://[::1]:80/a", Scheme::Web, "http://[::1]:80", "a", None);
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        let check = |entry: &str, problem| assert_eq!(Address::parse(entry), Err(problem));
        check("ftp://h/a.txt", AddressProblem::Scheme);
        check("s3:///a.txt", AddressProblem::Bucket);
        check("https://user:secret@h/a.txt", AddressProblem::User);
        check("http://h.org/a.txt", AddressProblem::PlainHttp);
        check("http://127.0.0.1.org/a.txt", AddressProblem::PlainHttp);
    }

    #[test]
    fn a_query_is_not_printed() {
        let address = Address::parse("https://h/a.txt?signature=secret").expect("an address");
        assert_eq!(address.to_string(), "https://h/a.txt");
    }

    #[test]
    fn paths_are_no_addresses() {
        for path in ["a.txt", "/a/b", "corpus/*.txt", "C:/a", "a b://c", "://a"] {
            assert!(!is_address(path), "{path}");
        }
        assert!(is_address("ftp://a/b"));
    }
}

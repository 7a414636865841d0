//! Who may look: nobody logs in on a loopback address; elsewhere a token of the cluster opens a
//! session.
//!
//! A token is what `zbelastic token create --role viewer` prints. It comes in the body of a form or
//! in an `Authorization` header, never in an address, because addresses are logged. The cluster
//! itself checks it, as it checks the token of `zbelastic login`, and counts a use; what a browser
//! keeps is a random number in a cookie that scripts cannot read. A scraper sends the token with
//! each scrape: it is checked at the first one.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use zbelastic_identity::random_number;

/// Sessions that are open at once; of more, the oldest ends.
pub const SESSIONS_MAX: usize = 256;
/// A session ends so long after it began: a token that was revoked opens nothing longer than this.
pub const SESSION_DURATION: Duration = Duration::from_secs(12 * 3600);
/// The cookie of a session.
pub const COOKIE: &str = "zbelastic_session";

/// Why a token opens no session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// The text is no token, or one of a node.
    #[error("this is no viewer's or operator's token: {reason}")]
    NotAToken {
        /// Why not, in words.
        reason: String,
    },
    /// The cluster refuses it: it has expired, was used up or revoked.
    #[error("the cluster refuses the token: {reason}")]
    Refused {
        /// Why, in the cluster's words.
        reason: String,
    },
    /// No controller answers.
    #[error("the cluster does not answer, so the token cannot be checked: {reason}")]
    Unanswered {
        /// Why, in words.
        reason: String,
    },
}

/// Checks a token with the cluster. It is called on a thread that may wait.
pub type TokenCheck = Arc<dyn Fn(&str) -> Result<(), TokenRefusal> + Send + Sync>;

/// Who is let in.
#[derive(Clone)]
pub enum AccessPolicy {
    /// Everybody who reaches this loopback address by a name of this machine.
    Loopback,
    /// Whoever has a token of the cluster.
    Token(TokenCheck),
}

impl AccessPolicy {
    /// The policy at an address, with a check for tokens where one is needed.
    #[must_use]
    pub fn at(address: SocketAddr, check: TokenCheck) -> Self {
        if address.ip().is_loopback() { Self::Loopback } else { Self::Token(check) }
    }
}

/// Whether the `Host` of a request names this machine: `localhost`, or a loopback address.
#[must_use]
pub fn is_own_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(name, _)| name),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The value of the session's cookie in a `Cookie` header.
#[must_use]
pub fn session_of(cookies: &str) -> Option<&str> {
    let mut pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
    pairs.find_map(|(name, value)| (name == COOKIE).then_some(value))
}

/// Sessions that are open, by their cookie or by the token that a scraper sends.
#[derive(Debug, Default)]
pub struct SessionTable {
    began: BTreeMap<String, Instant>,
}

impl SessionTable {
    /// Whether a session of this key is open at `now`.
    #[must_use]
    pub fn is_open(&self, key: &str, now: Instant) -> bool {
        let began = self.began.get(key);
        began.is_some_and(|began| now.duration_since(*began) < SESSION_DURATION)
    }

    /// Opens a session with a random key of 256 bits, and returns the key.
    pub fn open(&mut self, now: Instant) -> String {
        let key: String = (0..4).map(|_| format!("{:016x}", random_number())).collect();
        self.open_as(key.clone(), now);
        key
    }

    /// Opens a session with this key: the token of a scraper.
    pub fn open_as(&mut self, key: String, now: Instant) {
        self.began.retain(|_, began| now.duration_since(*began) < SESSION_DURATION);
        if self.began.len() >= SESSIONS_MAX {
            let oldest = self.began.iter().min_by_key(|(_, began)| **began);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.began.remove(&oldest);
            }
        }
        self.began.insert(key, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_known_and_others_are_not() {
        for own in [
            "localhost",
            "localhost:8088",
            "127.0.0.1:80",
            "LOCALHOST:1",
            "[::1]:8088",
            "127.1.2.3",
        ] {
            assert!(is_own_host(own), "{own}");
        }
        for other in
            ["", "example.org", "127.0.0.1.example.org:80", "10.0.0.1", "[::2]:1", "localhost.evil"]
        {
            assert!(!is_own_host(other), "{other}");
        }
    }

    #[test]
    fn the_sessions_cookie_is_found_among_others() {
        assert_eq!(session_of("a=b; zbelastic_session=ff; c=d"), Some("ff"));
        assert_eq!(session_of("zbelastic_session2=ff"), None);
        assert_eq!(session_of(""), None);
    }

    #[test]
    fn a_session_ends_in_time_and_so_many_are_open() {
        let mut table = SessionTable::default();
        let now = Instant::now();
        let key = table.open(now);
        assert_eq!(key.len(), 64);
        let last = now + SESSION_DURATION - Duration::from_nanos(1);
        assert!(table.is_open(&key, last) && !table.is_open(&key, now + SESSION_DURATION));
        assert!(!table.is_open("", now));
        for number in 1..=SESSIONS_MAX as u64 {
            table.open(now + Duration::from_secs(number));
        }
        assert!(!table.is_open(&key, now), "the oldest ended");
        assert_eq!(table.began.len(), SESSIONS_MAX);
    }
}

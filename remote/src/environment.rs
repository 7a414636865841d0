//! Variables of the environment, by which the providers' own tools know credentials and endpoints.

use std::env;
use std::str::FromStr;

/// Variables with their values.
#[derive(Clone, Default)]
pub struct Environment(Vec<(String, String)>);

impl Environment {
    /// Those of this process. What is not UTF-8 is no variable of a provider.
    #[must_use]
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        env::vars_os().filter_map(text).collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    /// The variables with a prefix that are a provider's settings.
    pub(crate) fn settings<K: FromStr>(&self, prefix: &str) -> impl Iterator<Item = (K, &str)> {
        let ours = self.0.iter().filter(move |(name, _)| name.starts_with(prefix));
        ours.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, &**value)))
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}

//! Sources of preemption notices: the clouds, and whether one is probed for.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A cloud with notices that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// Amazon Web Services.
    Aws,
    /// Google Cloud.
    Gcp,
    /// Microsoft Azure.
    Azure,
}

impl Cloud {
    /// All of them, in the order in which one is chosen if several answer.
    pub const ALL: [Self; 3] = [Self::Aws, Self::Gcp, Self::Azure];

    /// As it is typed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Gcp => "gcp",
            Self::Azure => "azure",
        }
    }
}

impl fmt::Display for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which cloud to listen to, as typed after `--spot`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoticeSource {
    /// The cloud that answers the probe.
    #[default]
    Auto,
    /// Amazon Web Services.
    Aws,
    /// Google Cloud.
    Gcp,
    /// Microsoft Azure.
    Azure,
    /// No cloud; no request is sent.
    None,
}

impl NoticeSource {
    /// Every source, in the order in which errors list them.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Aws, Self::Gcp, Self::Azure, Self::None];

    /// As it is typed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Aws => Cloud::Aws.name(),
            Self::Gcp => Cloud::Gcp.name(),
            Self::Azure => Cloud::Azure.name(),
            Self::None => "none",
        }
    }
}

impl fmt::Display for NoticeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not the name of a source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected auto, aws, gcp, azure or none, found `{found}`")]
pub struct UnknownNoticeSource {
    /// The name as it was typed.
    pub found: String,
}

impl FromStr for NoticeSource {
    type Err = UnknownNoticeSource;

    fn from_str(text: &str) -> Result<Self, UnknownNoticeSource> {
        let found = Self::ALL.into_iter().find(|source| source.name() == text);
        found.ok_or_else(|| UnknownNoticeSource { found: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::{NoticeSource, UnknownNoticeSource};

    #[test]
    fn a_source_is_read_as_it_is_written() {
        for source in NoticeSource::ALL {
            assert_eq!(source.to_string().parse(), Ok(source));
        }
        for wrong in ["", "AWS", "ec2", "aws "] {
            let expected = Err(UnknownNoticeSource { found: wrong.to_owned() });
            assert_eq!(wrong.parse::<NoticeSource>(), expected);
        }
    }
}

//! The token stores that a run reads in place of text: which, with which weights, and whether the
//! model fits them.

use std::num::NonZeroU32;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zbelastic_data::store::StoreError;
use zbelastic_data::window::Packing;
use zbelastic_wording::FailureDetail;

use super::assignment::SettingOrigin;

/// The name of the built-in tokenizer, whose tokens are bytes.
pub const BYTES_TOKENIZER: &str = "bytes";

/// The file of a tokenizer that is read here.
pub(crate) const TOKENIZER_JSON: &str = "tokenizer.json";

/// What a run reads in tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokensConfig {
    /// Stores to train on; none to train on text.
    pub stores: Vec<StoreShare>,
    /// Whether the documents of a window see each other.
    pub packing: Packing,
    /// The tokenizer's folder or file; none for bytes.
    pub tokenizer: Option<PathBuf>,
}

/// A store with its part in a mixture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreShare {
    /// The store's folder.
    pub folder: PathBuf,
    /// Its sequences, compared with those of the others.
    pub weight: NonZeroU32,
}

/// Why stores cannot be trained on.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// A tokenizer without anything to read by it.
    #[error("is empty, and so is data.text")]
    NoText,
    /// Text and stores are both named.
    #[error("stands beside data.text")]
    BesideText,
    /// Documents are to be kept apart, and there are none.
    #[error("text that is read as bytes is one stream, in which no documents are known")]
    BytePacking,
    /// A weight is not a number from 1 on.
    #[error("`{entry}`: {weight} is no weight")]
    Weight {
        /// The entry of the list.
        entry: String,
        /// What stands behind its last equals sign.
        weight: String,
    },
    /// A store is to be read from another machine.
    #[error("{entry} is an address, and a store is a folder of this machine")]
    Address {
        /// The entry of the list.
        entry: String,
    },
    /// A store's manifest cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A store was made with another tokenizer than the first.
    #[error("{} was made with tokenizer {found}, {} with {expected}", folder.display(), first.display())]
    OtherTokenizer {
        /// Folder of the store.
        folder: PathBuf,
        /// The hash of its tokenizer.
        found: String,
        /// Folder of the first store.
        first: PathBuf,
        /// The hash of the first store's tokenizer.
        expected: String,
    },
    /// A store has ids that the model does not know.
    #[error("{} has a vocabulary of {needed}, the model of {vocabulary}", folder.display())]
    Vocabulary {
        /// Folder of the store.
        folder: PathBuf,
        /// Ids of the store's vocabulary.
        needed: u32,
        /// Tokens that the model knows.
        vocabulary: u32,
    },
}

impl TokensConfig {
    /// Whether text is read as bytes.
    #[must_use]
    pub fn is_bytes(&self) -> bool {
        self.stores.is_empty() && self.tokenizer.is_none()
    }

    /// Whether text is to be encoded by a tokenizer.
    #[must_use]
    pub fn is_encoded_text(&self) -> bool {
        self.stores.is_empty() && self.tokenizer.is_some()
    }

    /// Whether it says nothing: jobs over stores, whose folders are not named in them, say how
    /// these are packed.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl StoreShare {
    /// The share as it is written: the folder, and the weight if it is not 1.
    #[must_use]
    pub fn entry(&self) -> String {
        let folder = self.folder.display().to_string();
        // A folder whose name ends as a weight does needs one, to be read as a folder.
        match (self.weight, split_weight(&folder)) {
            (NonZeroU32::MIN, None) => folder,
            (weight, _) => format!("{folder}={weight}"),
        }
    }

    pub(super) fn parse(entry: &str) -> Result<Self, TokensError> {
        if entry.contains("://") {
            return Err(TokensError::Address { entry: entry.to_owned() });
        }
        let (folder, weight) = match split_weight(entry) {
            None => (entry, NonZeroU32::MIN),
            Some((folder, digits)) => match digits.parse() {
                Ok(weight) => (folder, weight),
                Err(_) => {
                    let weight = digits.to_owned();
                    return Err(TokensError::Weight { entry: entry.to_owned(), weight });
                }
            },
        };
        Ok(Self { folder: PathBuf::from(folder), weight })
    }
}

/// Splits an entry at its last equals sign, if a number follows.
fn split_weight(entry: &str) -> Option<(&str, &str)> {
    let (folder, weight) = entry.rsplit_once('=')?;
    let is_number = !weight.is_empty() && weight.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some((folder, weight))
}

impl TokensError {
    /// The error as it is printed; `at` is where the stores are named.
    pub(super) fn detail(&self, at: &SettingOrigin) -> FailureDetail {
        let key = if matches!(self, Self::BytePacking) { "data.packing" } else { "data.tokens" };
        let detail = FailureDetail::new(format!("{key}: {self}")).at(at.to_string());
        match self {
            Self::BytePacking => detail
                .why("attention would cross documents all the same")
                .hint("data.tokens, or data.tokenizer with data.text; or leave out data.packing"),
            Self::NoText => detail
                .why("data.tokenizer makes tokens of text that is named")
                .hint("--text with files, or data.tokens with a store"),
            Self::BesideText => detail
                .why("a run reads text or stores")
                .hint("leave out data.text, or `zbelastic data prepare` makes a store of it"),
            Self::Weight { .. } => {
                detail.why("weights are whole numbers from 1 on").hint("stores/a=3")
            }
            Self::Address { .. } => detail
                .why("its shards are mapped while a run trains, and workers fetch them from each other")
                .hint(
                    "copy its folder here first; or data.text with the address of the text and \
                     data.tokenizer, as `zbelastic data prepare` reads it",
                ),
            Self::Store(StoreError::Manifest { .. }) => detail
                .why("a folder with a manifest.json is a store that is whole")
                .hint("`zbelastic data prepare` makes one, and goes on with one that is not"),
            Self::Store(_) => detail.hint("`zbelastic data prepare` makes it again"),
            Self::OtherTokenizer { .. } => detail
                .why("an id is another token in each")
                .hint("prepare all stores of a mixture with one tokenizer"),
            Self::Vocabulary { needed, .. } => detail
                .why("an id is a row of the model's embedding")
                .hint(format!(
                    "model.vocab = {needed} or more, or leave it out; with model.from_hf a store made with \
                     the tokenizer of that model"
                )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{StoreShare, TokensError};

    #[test]
    fn weights_stand_behind_the_last_equals_sign() {
        let check = |entry: &str, folder: &str, weight: u32| {
            let share = StoreShare::parse(entry).expect("a share");
            assert_eq!((share.folder.to_str(), share.weight.get()), (Some(folder), weight));
            assert_eq!(StoreShare::parse(&share.entry()).expect("written"), share);
        };
        check("stores/a", "stores/a", 1);
        check("stores/a=3", "stores/a", 3);
        check("a=b", "a=b", 1);
        check("a=2=1", "a=2", 1);
        check("a=", "a=", 1);
        for entry in ["a=0", "a=4294967296"] {
            assert!(StoreShare::parse(entry).is_err(), "{entry}");
        }
    }

    #[test]
    fn a_store_on_another_machine_is_refused_by_name() {
        for entry in ["s3://b/store", "gs://b/store=3", "az://c/store", "https://host/store"] {
            let error = StoreShare::parse(entry).expect_err("an address");
            assert!(matches!(error, TokensError::Address { .. }), "{error}");
            let text = error.to_string();
            assert_eq!(
                text,
                format!("{entry} is an address, and a store is a folder of this machine")
            );
        }
    }
}

//! The text that the binary carries: the project's own documentation.

use crate::text::{Text, TextFile};
use zbelastic_types::Bytes;

macro_rules! pages {
    ($($page:literal),* $(,)?) => {
        [$(($page, include_str!(concat!("../../../docs/", $page)))),*]
    };
}

const PAGES: [(&str, &str); 1] = pages!["schedule-ir.md"];

/// All pages as one text, as if they had been gathered from their folder.
pub fn text() -> Text {
    let mut bytes = Vec::new();
    let mut files = Vec::new();
    for (page, text) in PAGES {
        files.push(TextFile { path: page.into(), size: Bytes(text.len() as u64) });
        bytes.extend_from_slice(text.as_bytes());
    }
    Text { hash: blake3::hash(&bytes), bytes, files, skipped: Vec::new() }
}

//! Names of codes, as strings that live as long as the process.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

/// Name of a result code, as a C string that lives as long as the process.
pub fn name_of(code: impl Debug) -> *const c_char {
    static NAMES: Mutex<BTreeMap<String, CString>> = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("{code:?}");
    let text = CString::new(name.clone()).expect("a name has no zero bytes");
    // What a string holds stays where it is when the map moves the string.
    names.entry(name).or_insert(text).as_ptr()
}

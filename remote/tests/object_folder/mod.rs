//! Folders of objects that are written, wherever they are.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use zbelastic_remote::{Environment, ObjectFolder, OnRetry, RemoteError, RetryEvent, RetryPolicy};

/// Waits take no time.
pub fn open_folder(place: &str, environment: &Environment) -> Result<ObjectFolder, RemoteError> {
    let policy =
        RetryPolicy { attempts_max: 3, wait_first: Duration::ZERO, wait_max: Duration::ZERO };
    let on_retry: OnRetry = Arc::new(|_: RetryEvent<'_>| ControlFlow::Continue(()));
    ObjectFolder::open(place, environment, policy, on_retry)
}

/// What a folder of objects does, wherever it is.
pub fn check_object_folder(place: &str, environment: &Environment) {
    let open = || open_folder(place, environment);
    let folder = open().expect("a place");
    assert_eq!(folder.list("a").expect("an empty one"), Vec::<String>::new());
    assert_eq!(folder.get("a/1", 9).expect("it may be asked"), None);
    let long: Vec<u8> = (0..5_000_000_u32).map(|number| number as u8).collect();
    let objects = [("a/1", b"one".to_vec()), ("a/b/2", long), ("c/3", b"three".to_vec())];
    for (key, bytes) in &objects {
        folder.put(key, bytes).expect("room");
    }
    for (key, bytes) in &objects {
        let read = open().expect("a place").get(key, bytes.len()).expect("it is there");
        assert!(read.as_ref() == Some(bytes), "{key}");
        let mut into = vec![0; bytes.len()];
        assert!(folder.get_exact(key, &mut into).expect("readable"), "{key}");
        assert!(into == *bytes, "{key}");
    }
    let short = folder.get("c/3", 4).expect_err("it is longer");
    assert!(matches!(short, RemoteError::Short { expected: 5, found: 4 }), "{short}");
    for length in [4, 6] {
        let error = folder.get_exact("c/3", &mut vec![0; length]).expect_err("of 5 bytes");
        assert!(matches!(error, RemoteError::Short { .. }), "{error}");
    }
    assert!(!folder.get_exact("c/4", &mut [0; 4]).expect("it may be asked"));
    let mut keys = folder.list("a").expect("a folder");
    keys.sort();
    assert_eq!(keys, ["a/1", "a/b/2"]);
    folder.put("a/1", b"another").expect("it is replaced");
    assert_eq!(folder.get("a/1", 9).expect("it is there"), Some(b"another".to_vec()));
    for _ in 0..2 {
        folder.remove("a/1").expect("removed, or gone");
    }
    assert_eq!(folder.get("a/1", 9).expect("it may be asked"), None);
    assert_eq!(folder.list("a").expect("a folder"), ["a/b/2"]);
}

//! Local files and objects beside each other, as entries name them.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::ObjectMeta;
use zbelastic_data::source::{
    LocalStorage, RangedFile, SourceFile, SourceFormat, SourceListError, SourceStorage,
};
use zbelastic_types::Bytes;

use crate::address::{Address, Place, Scheme, is_address};
use crate::environment::Environment;
use crate::error::{Missing, RemoteError};
use crate::http_client::RetryingConnector;
use crate::listing::{FILES_MAX, Selection, order};
use crate::object::{RemoteObject, version_of};
use crate::retry::{OnRetry, RetryPolicy};
use crate::store::RemoteStore;

/// The local disk, and the object stores and web servers that addresses name. Credentials and
/// endpoints come from variables of the environment, under the names that the providers' own tools have for them.
pub struct RemoteStorage {
    environment: Environment,
    policy: RetryPolicy,
    on_retry: OnRetry,
    /// One for each bucket, so that connections and tokens are used again. Locked to look one up.
    stores: Mutex<BTreeMap<Place, Arc<RemoteStore>>>,
}

impl RemoteStorage {
    /// Asks no server yet. `on_retry` learns of each wait for one, and may end it.
    #[must_use]
    pub fn new(environment: Environment, policy: RetryPolicy, on_retry: OnRetry) -> Self {
        Self { environment, policy, on_retry, stores: Mutex::default() }
    }

    fn store(&self, place: &Place) -> Result<Arc<RemoteStore>, RemoteError> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(place) {
            return Ok(Arc::clone(store));
        }
        let connector = RetryingConnector {
            policy: self.policy,
            on_retry: Arc::clone(&self.on_retry),
            plain_host: None,
            is_redirected: false,
        };
        let store = Arc::new(RemoteStore::open(place, &self.environment, connector)?);
        stores.insert(place.clone(), Arc::clone(&store));
        Ok(store)
    }

    fn list_remote(&self, entry: &str) -> Result<Vec<SourceFile>, RemoteError> {
        let address = parse(entry)?;
        let store = self.store(&address.place)?;
        if address.place.scheme == Scheme::Web {
            let is_folder = address.key.is_empty() || address.key.ends_with('/');
            if is_folder || address.key.contains('*') {
                return Err(RemoteError::NoListing);
            }
            let found = store.head(&address.key)?;
            let found = found.ok_or_else(|| store.missing(Missing::File))?;
            return Ok(vec![source_file(&address, &found)]);
        }
        let problem = |problem| RemoteError::Address { problem };
        match Selection::of(&address.key).map_err(problem)? {
            Selection::Named => list_named(&store, &address),
            selection @ (Selection::Folder(_) | Selection::Glob { .. }) => {
                Ok(list_all(&store, &address, &selection)?.files)
            }
        }
    }
}

fn parse(entry: &str) -> Result<Address, RemoteError> {
    Address::parse(entry).map_err(|problem| RemoteError::Address { problem })
}

/// An object, or else a folder of this name. A name of no known format is more often a folder, and
/// servers over a disk know no difference.
fn list_named(store: &RemoteStore, address: &Address) -> Result<Vec<SourceFile>, RemoteError> {
    let is_file_name = SourceFormat::of_name(&address.key).is_some();
    let object = |is_first: bool| match is_first == is_file_name {
        true => store.head(&address.key),
        false => Ok(None),
    };
    if let Some(found) = object(true)? {
        return Ok(vec![source_file(address, &found)]);
    }
    let folder = list_all(store, address, &Selection::Folder(format!("{}/", address.key)))?;
    if folder.is_there {
        return Ok(folder.files);
    }
    let found = object(false)?.ok_or_else(|| store.missing(Missing::Key))?;
    Ok(vec![source_file(address, &found)])
}

/// What a folder has.
struct ListedFolder {
    /// The objects that are meant, in the order of paths.
    files: Vec<SourceFile>,
    /// Whether it has any object.
    is_there: bool,
}

fn list_all(
    store: &RemoteStore,
    address: &Address,
    selection: &Selection,
) -> Result<ListedFolder, RemoteError> {
    let mut found: Vec<(String, SourceFile)> = Vec::new();
    let mut is_there = false;
    store.list(selection.folder(), &mut |meta| {
        is_there = true;
        let key = meta.location.as_ref();
        if !selection.is_meant(key) {
            return Ok(());
        }
        if found.len() == FILES_MAX {
            return Err(RemoteError::TooMany { max: FILES_MAX });
        }
        found.push((key.to_owned(), source_file(&address.with_key(key), &meta)));
        Ok(())
    })?;
    found.sort_by(|(key, _), (other, _)| order(key, other));
    Ok(ListedFolder { files: found.into_iter().map(|(_, file)| file).collect(), is_there })
}

fn source_file(address: &Address, meta: &ObjectMeta) -> SourceFile {
    SourceFile {
        path: address.to_string(),
        canonical: address.canonical(),
        bytes: Bytes(meta.size),
        version: version_of(meta),
    }
}

impl SourceStorage for RemoteStorage {
    fn list(&self, entry: &str) -> Result<Vec<SourceFile>, SourceListError> {
        if !is_address(entry) {
            return LocalStorage.list(entry);
        }
        self.list_remote(entry).map_err(|error| SourceListError::Unreadable {
            // Without a query, which may be a signature.
            path: entry.split('?').next().unwrap_or_default().to_owned(),
            source: io::Error::other(error),
        })
    }

    fn open(&self, file: &SourceFile) -> io::Result<Box<dyn RangedFile>> {
        if !is_address(&file.canonical) {
            return LocalStorage.open(file);
        }
        let address = parse(&file.canonical).map_err(io::Error::other)?;
        let store = self.store(&address.place).map_err(io::Error::other)?;
        let version = file.version.clone();
        Ok(Box::new(RemoteObject::new(store, address.key, file.bytes.0, version)))
    }
}

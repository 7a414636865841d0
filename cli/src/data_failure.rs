//! What a person reads of an error of sources, tokenizers and stores.

use std::path::Path;

use zbelastic_data::encode::EncodeError;
use zbelastic_data::prepare::PrepareError;
use zbelastic_data::source::{BadDocument, SourceError, SourceListError};
use zbelastic_data::store::StoreError;
use zbelastic_tokenizer::FolderError;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail, cannot_write};

use crate::remote_sources;

/// A failure with one detail.
fn failure(code: FailureCode, what: &str, detail: FailureDetail) -> CommandFailure {
    CommandFailure { code, what: what.to_owned(), details: vec![detail] }
}

fn corpus(detail: FailureDetail) -> CommandFailure {
    CommandFailure::usage("the corpus", vec![detail])
}

/// Entries that give no files.
pub fn of_list(error: &SourceListError) -> CommandFailure {
    if let Some(failure) = remote_sources::failure_of_list(error) {
        return failure;
    }
    let detail = FailureDetail::new(error.to_string());
    match error {
        SourceListError::NotFound { .. } => {
            let detail =
                detail.hint("a file, a folder, or a glob in quotes such as 'notes/**/*.md'");
            failure(FailureCode::NotFound, "the corpus has an error", detail)
        }
        SourceListError::NothingMatched { .. } => {
            failure(FailureCode::NotFound, "the corpus has an error", detail)
        }
        SourceListError::Format { .. } => {
            corpus(detail.hint("rename the file after what is in it, such as .txt or .jsonl"))
        }
        SourceListError::Unreadable { .. } | SourceListError::Glob { .. } => corpus(detail),
    }
}

/// The flags of `data prepare` that hints on sources name.
pub const PREPARE_FLAGS: &[&str] = &[FIELD, SKIP_BAD];
/// The one that `tokenizer train` and `eval` have as well.
pub const FIELD: &str = "--field";
const SKIP_BAD: &str = "--skip-bad";

/// A source that cannot be read by a command with these of [`PREPARE_FLAGS`].
pub fn of_source(error: &SourceError, flags: &[&str]) -> CommandFailure {
    if let Some(failure) = remote_sources::failure_of_source(error) {
        return failure;
    }
    match error {
        SourceError::Io { file, source } => {
            let what = format!("cannot be read: {source}");
            corpus(FailureDetail::new(what).at(file.clone()))
        }
        SourceError::Bad { file, line, problem } => {
            let place = format!("{file}:{line}");
            corpus(FailureDetail::new(problem.to_string()).at(place).hint(bad_hint(problem, flags)))
        }
        SourceError::NotUtf8 { file, offset } => {
            let detail = FailureDetail::new(format!("byte {offset} is not UTF-8"));
            corpus(detail.at(file.clone()).hint("iconv -f latin1 -t utf-8, or leave the file out"))
        }
        SourceError::NoColumn { .. } => {
            let detail = FailureDetail::new(error.to_string());
            corpus(detail.hint(field_hint("columns", flags)))
        }
        SourceError::Parquet { .. } => {
            let detail = FailureDetail::new(error.to_string());
            corpus(detail.hint("download or write the file again"))
        }
        SourceError::TokenCount { .. } => {
            let detail = FailureDetail::new(error.to_string());
            corpus(detail.hint("download or write the file again: it was cut short"))
        }
        SourceError::TokenVersion { .. } | SourceError::EmptySeparator => {
            corpus(FailureDetail::new(error.to_string()))
        }
    }
}

fn bad_hint(problem: &BadDocument, flags: &[&str]) -> String {
    let hint = match problem {
        BadDocument::NoField { .. } => field_hint("fields", flags),
        BadDocument::Json { .. } | BadDocument::FieldType { .. } | BadDocument::TooLong { .. } => {
            "mend the line".to_owned()
        }
    };
    or_skipped(hint, "lines", flags)
}

fn field_hint(what: &str, flags: &[&str]) -> String {
    match flags.contains(&FIELD) {
        true => format!("{FIELD} NAME, with one of these {what}"),
        false => format!("data.tokens of a store by `zbelastic data prepare {FIELD} NAME`"),
    }
}

/// The hint, and that bad ones are left out on request where the command has the flag for it.
fn or_skipped(hint: String, what: &str, flags: &[&str]) -> String {
    match flags.contains(&SKIP_BAD) {
        true => format!("{hint}; {SKIP_BAD} counts such {what} and leaves them out"),
        false => hint,
    }
}

/// A folder of a tokenizer, as it was typed.
pub fn of_folder(typed: &Path, error: &FolderError) -> CommandFailure {
    let place = typed.display().to_string();
    match error {
        FolderError::Missing { .. } => {
            let detail = FailureDetail::new("there is no tokenizer.json").at(place);
            let detail = detail.hint(
                "`zbelastic tokenizer train` makes one; `save_pretrained` of transformers writes \
                 a model's; --tokenizer bytes needs none",
            );
            failure(FailureCode::NotFound, "the tokenizer has an error", detail)
        }
        FolderError::Read { path, cause } => {
            let detail = FailureDetail::new(format!("cannot be read: {cause}"));
            CommandFailure::usage("the tokenizer", vec![detail.at(path.display().to_string())])
        }
        FolderError::Write { path, cause } => cannot_write(path, cause),
        FolderError::Load { cause, .. } => {
            let detail = FailureDetail::new(cause.to_string()).at(place);
            CommandFailure::usage("the tokenizer", vec![detail])
        }
    }
}

fn of_encode(place: String, error: &EncodeError, flags: &[&str]) -> CommandFailure {
    let detail = FailureDetail::new(error.to_string()).at(place);
    corpus(match error {
        EncodeError::NoChatTemplate => {
            detail.why("a list of messages becomes text by the chat template of a tokenizer").hint(
                "--tokenizer with a chat model's folder, a chat_template.jinja beside its \
                 tokenizer.json, or --field NAME of a text",
            )
        }
        EncodeError::NoDate => detail
            .why("a template that writes today's date makes other tokens of the same data each day")
            .hint("--date 2026-11-29, or another day"),
        EncodeError::Render { .. } => {
            let hint = "mend the record, or the template".to_owned();
            detail.hint(or_skipped(hint, "records", flags))
        }
        EncodeError::Template { .. } => detail.hint("mend the template"),
        EncodeError::Tokenize { .. } => detail,
    })
}

/// A store that cannot be made by a command with these of [`PREPARE_FLAGS`]. [`PrepareError::Stopped`] is the
/// caller's to explain.
pub fn of_prepare(error: &PrepareError, flags: &[&str]) -> CommandFailure {
    let detail = FailureDetail::new(error.to_string());
    let refused = "the token store cannot be made";
    match error {
        PrepareError::List(error) => of_list(error),
        PrepareError::Source(error) => of_source(error, flags),
        PrepareError::Encode { file, line, source } => {
            of_encode(format!("{file}:{line}"), source, flags)
        }
        PrepareError::LossMask { .. } | PrepareError::Panicked => {
            failure(FailureCode::Internal, refused, detail)
        }
        PrepareError::Vocabulary { .. } => {
            corpus(detail.hint("--tokenizer with the tokenizer that made these ids"))
        }
        PrepareError::ShardTokens { .. } => {
            CommandFailure::usage("the command", vec![detail.at("--shard-tokens")])
        }
        PrepareError::Shards { .. } => {
            CommandFailure::usage("the command", vec![detail.hint("--shard-tokens of more")])
        }
        PrepareError::Exists { folder } => {
            let show = format!("zbelastic data show {}", folder.display());
            let hint = format!("`{show}`; or --to another folder, or remove this one first");
            failure(FailureCode::WrongState, refused, detail.hint(hint))
        }
        PrepareError::OtherRequest { .. } => {
            let detail = detail
                .why("sources, options and tokenizer, and files with their times, name a request")
                .hint("the same request again, --to another folder, or remove this one first");
            failure(FailureCode::WrongState, refused, detail)
        }
        PrepareError::NotEmpty { .. } => {
            failure(FailureCode::WrongState, refused, detail.hint("--to a new folder"))
        }
        PrepareError::Busy { .. } => {
            let detail = detail.hint("wait until it is done, or --to another folder");
            failure(FailureCode::WrongState, refused, detail)
        }
        PrepareError::Journal { .. } => {
            let detail = detail.hint("remove the folder: the store is made anew");
            failure(FailureCode::VerificationFailed, refused, detail)
        }
        PrepareError::Write { path, source } => {
            let mut failure = cannot_write(path, source);
            failure.details = vec![match failure.code == FailureCode::OutOfResource {
                true => FailureDetail::new("finished shards are kept")
                    .hint("make room, then the same command goes on"),
                false => FailureDetail::new("the store is not finished")
                    .hint("--to a folder that can be written"),
            }];
            failure
        }
        PrepareError::Stopped => failure(FailureCode::Interrupted, refused, detail),
    }
}

/// A store that cannot be read.
pub fn of_store(error: &StoreError) -> CommandFailure {
    let detail = FailureDetail::new(error.to_string());
    let damaged = "the token store is damaged";
    match error {
        StoreError::Io { .. } => CommandFailure::usage("the token store", vec![detail]),
        StoreError::Range { .. } | StoreError::Absent { .. } => {
            failure(FailureCode::Internal, damaged, detail)
        }
        StoreError::Manifest { .. }
        | StoreError::Content { .. }
        | StoreError::Length { .. }
        | StoreError::Hash { .. }
        | StoreError::DocumentEnd { .. }
        | StoreError::OpenDocument { .. }
        | StoreError::Vocabulary { .. } => {
            let hint = "remove the folder, and make the store again with `zbelastic data prepare`";
            failure(FailureCode::VerificationFailed, damaged, detail.hint(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_full_disk_is_out_of_resource_and_keeps_what_is_finished() {
        let error = |kind: io::ErrorKind| PrepareError::Write {
            path: PathBuf::from("store/00001.shard.part"),
            source: kind.into(),
        };
        let check = |kind, code, hint: &str| {
            let failure = of_prepare(&error(kind), PREPARE_FLAGS);
            assert_eq!(failure.code, code, "{failure}");
            let text = failure.to_string();
            assert!(text.contains("cannot write store/00001.shard.part"), "{text}");
            assert!(text.contains(hint), "{text}");
        };
        let full = "finished shards are kept\n  try: make room, then the same command goes on";
        check(io::ErrorKind::StorageFull, FailureCode::OutOfResource, full);
        let denied = "try: --to a folder that can be written";
        check(io::ErrorKind::PermissionDenied, FailureCode::Usage, denied);
    }

    #[test]
    fn hints_name_the_flags_that_the_command_has() {
        let check = |error: &PrepareError, flags: &[&str], expected: &str| {
            let text = of_prepare(error, flags).to_string();
            assert!(text.ends_with(&format!("\n  try: {expected}")), "{text}");
        };
        let bad = |problem| {
            PrepareError::Source(SourceError::Bad { file: "a".to_owned(), line: 3, problem })
        };
        let json = bad(BadDocument::Json { reason: "EOF".to_owned() });
        let skipped = "mend the line; --skip-bad counts such lines and leaves them out";
        check(&json, PREPARE_FLAGS, skipped);
        check(&json, &[FIELD], "mend the line");
        check(&json, &[], "mend the line");
        let field = bad(BadDocument::NoField { expected: "text".to_owned(), found: Vec::new() });
        let named = "--field NAME, with one of these fields";
        let left_out = "; --skip-bad counts such lines and leaves them out";
        check(&field, PREPARE_FLAGS, &format!("{named}{left_out}"));
        check(&field, &[FIELD], named);
        check(&field, &[], "data.tokens of a store by `zbelastic data prepare --field NAME`");
        let source = EncodeError::Render { reason: "no system role".to_owned() };
        let chat = PrepareError::Encode { file: "a".to_owned(), line: 3, source };
        let mend = "mend the record, or the template";
        let left_out = "; --skip-bad counts such records and leaves them out";
        check(&chat, PREPARE_FLAGS, &format!("{mend}{left_out}"));
        check(&chat, &[FIELD], mend);
    }

    #[test]
    fn a_shard_that_was_cut_short_is_damaged() {
        let path = PathBuf::from("store/00000.shard");
        let failure = of_store(&StoreError::Length { path, found: 3, expected: 4 });
        assert_eq!(failure.code, FailureCode::VerificationFailed);
        let text = failure.to_string();
        assert!(text.contains("store/00000.shard: has 3 bytes, expected 4"), "{text}");
    }
}

//! Why weights cannot be read: each error names the file or the tensor.

use std::io;

use safetensors::tensor::{Dtype, SafeTensorError};

/// What is wrong with the beginning of a file.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// The header is longer than the file, or than any that is read.
    #[error("a header of {header} bytes in a file of {file}")]
    Length {
        /// The length that the file announces.
        header: u64,
        /// The length of the file.
        file: u64,
    },
    /// The header is no text.
    #[error("the header is no UTF-8")]
    Text,
    /// The header is no list of tensors that lie one behind the other.
    #[error("{0}")]
    Tensors(#[from] SafeTensorError),
    /// The file was cut short, or has something behind its tensors.
    #[error("tensors and header have {expected} bytes, the file {found}")]
    Size {
        /// Bytes of the header and of all tensors.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// The file cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
}

/// Why weights cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file is no safetensors file.
    #[error("{file} is no safetensors file: {error}")]
    Format {
        /// Name of the file.
        file: String,
        /// What is wrong with it.
        error: HeaderError,
    },
    /// A file cannot be read.
    #[error("{file} cannot be read: {error}")]
    Read {
        /// Name of the file.
        file: String,
        /// What the system says.
        error: io::Error,
    },
    /// A tensor is missing.
    #[error("the weights lack the tensor {name}")]
    Missing {
        /// Name of the tensor in the file.
        name: String,
    },
    /// The index names a file for a tensor that is not in it.
    #[error("the index places the tensor {name} in {file}, which does not have it")]
    Misplaced {
        /// Name of the tensor.
        name: String,
        /// Name of the file.
        file: String,
    },
    /// A tensor is there twice.
    #[error("the tensor {name} is in {first} and in {second}")]
    Twice {
        /// Name of the tensor.
        name: String,
        /// A file that it is in.
        first: String,
        /// The other file.
        second: String,
    },
    /// A tensor that the model has no place for.
    #[error(
        "the weights have a tensor {name}, which a model of this config.json does not have: it may \
         be of another model, or of a part that is not supported"
    )]
    Extra {
        /// Name of the tensor.
        name: String,
    },
    /// A tensor has another shape.
    #[error("tensor {name} has shape {found:?}, expected {expected:?}")]
    Shape {
        /// Name of the tensor in the file.
        name: String,
        /// Shape that the model needs.
        expected: Vec<usize>,
        /// Shape that the file has.
        found: Vec<usize>,
    },
    /// A tensor has another type.
    #[error("tensor {name} is of type {found:?}, only F32, F16 and BF16 are supported")]
    Type {
        /// Name of the tensor in the file.
        name: String,
        /// Type of the tensor in the file.
        found: Dtype,
    },
    /// A weight is no number that a model can begin with.
    #[error("tensor {name} holds {found} at element {index}: the file is of a run that diverged")]
    NotFinite {
        /// Name of the tensor in the file.
        name: String,
        /// Index of the first such element.
        index: usize,
        /// The element: infinite or no number.
        found: f32,
    },
    /// The configuration ties two matrices that are different.
    #[error(
        "tensor {name} differs from {other}, and tie_word_embeddings says that they are one; set it \
         to false in config.json"
    )]
    Untied {
        /// Name of the head's matrix.
        name: String,
        /// Name of the embedding.
        other: String,
    },
}

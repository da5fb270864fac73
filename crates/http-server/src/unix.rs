//! A Unix socket and its file.
//!
//! The file of a dead process is replaced; a socket that a living process serves, and a file that is not a
//! socket, are not touched. The mode is set before any client can connect. The file is removed at the end,
//! unless another process has put its own in its place. Processes that start or end at the same moment are
//! serialised by a lock on the folder, which leaves no file.

use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::time::{Instant, sleep};

use crate::socket::{ConnectionSource, LISTEN_BACKLOG};

/// The longest path of a Unix socket, in bytes: the limit of the kernel, without the NUL at its end.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// The longest time to wait for another process to release the lock on the folder.
const FOLDER_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two attempts to get the lock.
const FOLDER_LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The reason why a Unix socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BindUnixError {
    /// The path is not valid for a socket.
    #[error("the path of a socket has 1 to {MAX_SOCKET_PATH_BYTES} bytes and no NUL; {} has {}", .0.display(), .0.as_os_str().len())]
    InvalidPath(PathBuf),
    /// A file of another kind is in its place. It was not touched.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// A living process serves the socket. It was not touched.
    #[error("another process serves {}", .0.display())]
    InUse(PathBuf),
    /// The operating system returned an error.
    #[error("could not {operation} {}", .path.display())]
    Io {
        /// Operation that failed.
        operation: &'static str,
        /// File or folder of the operation.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

/// A listening Unix socket. Its file is removed on drop, or when [`serve`](crate::serve) ends.
#[derive(Debug)]
pub struct BoundUnix {
    listener: UnixListener,
    file: SocketFile,
}

/// Checks that `path` is valid for a socket, without accessing the file system.
pub fn check_socket_path(path: &Path) -> Result<(), BindUnixError> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_SOCKET_PATH_BYTES || bytes.contains(&0) {
        return Err(BindUnixError::InvalidPath(path.to_owned()));
    }
    Ok(())
}

/// Listens on a Unix socket at `path`, whose file gets the permissions of `mode` regardless of the umask.
pub async fn bind_unix(path: &Path, mode: u32) -> Result<BoundUnix, BindUnixError> {
    check_socket_path(path)?;
    let failed = |operation| move |source| BindUnixError::Io { operation, path: path.to_owned(), source };
    let _lock = lock_folder(path).await?;
    remove_stale(path).await?;
    let socket = UnixSocket::new_stream().map_err(failed("make the socket"))?;
    socket.bind(path).map_err(failed("make the socket"))?;
    let file = SocketFile::open(path).map_err(failed("open the socket"))?;
    // Connections are refused until the socket listens.
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("set the mode of"))?;
    let listener = socket.listen(LISTEN_BACKLOG).map_err(failed("listen on"))?;
    Ok(BoundUnix { listener, file })
}

impl ConnectionSource for BoundUnix {
    type Stream = UnixStream;
    type Remains = SocketFile;

    async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }

    fn peer(_: &UnixStream) -> Option<IpAddr> {
        None
    }

    fn close(self) -> SocketFile {
        self.file
    }
}

/// The file of a socket; removed on drop.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Keeps the inode in use, so that no other file can get the same number.
    inode: File,
}

impl SocketFile {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inode = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        Ok(Self { path: path.to_owned(), inode })
    }

    fn is_in_place(&self) -> bool {
        let place = |metadata: Metadata| (metadata.dev(), metadata.ino());
        match (fs::symlink_metadata(&self.path), self.inode.metadata()) {
            (Ok(there), Ok(ours)) => place(there) == place(ours),
            _ => false,
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Without the lock the file is removed anyway: the file in its place is checked just before.
        let folder = File::open(folder(&self.path)).ok();
        let _locked = folder.as_ref().map(File::try_lock);
        if self.is_in_place()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(error = %error, socket = %self.path.display(), "the file of the socket could not be removed");
        }
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The folder, locked until it is dropped.
async fn lock_folder(path: &Path) -> Result<File, BindUnixError> {
    let path = folder(path);
    let failed = |operation| move |source| BindUnixError::Io { operation, path: path.to_owned(), source };
    let folder = File::open(path).map_err(failed("open the folder"))?;
    let deadline = Instant::now() + FOLDER_LOCK_TIMEOUT;
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                sleep(FOLDER_LOCK_RETRY_INTERVAL).await;
            }
            Err(error) => return Err(failed("lock the folder")(error.into())),
        }
    }
}

/// Removes the socket file of a dead process.
async fn remove_stale(path: &Path) -> Result<(), BindUnixError> {
    let failed = |operation| move |source| BindUnixError::Io { operation, path: path.to_owned(), source };
    let file_type = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at")(error)),
    };
    if !file_type.is_socket() {
        return Err(BindUnixError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("remove the stale socket"))
        }
        // The backlog of the process is full.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(BindUnixError::InUse(path.to_owned())),
        Err(error) => Err(failed("find out whether a process serves")(error)),
        Ok(_) => Err(BindUnixError::InUse(path.to_owned())),
    }
}

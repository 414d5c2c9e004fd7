"""The measurements that users and we run."""

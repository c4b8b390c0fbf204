#!/bin/sh
# Build the image that .env describes.
. "$(dirname "$0")/common.sh"
set -- BASE_IMAGE="$BASE_IMAGE" WITH_NSYS="$WITH_NSYS" WITH_MPI="$WITH_MPI" WITH_EFA="$WITH_EFA" \
  WITH_NCCL_TESTS="$WITH_NCCL_TESTS" EFA_VERSION="$EFA_VERSION" NCCL_TESTS_VERSION="$NCCL_TESTS_VERSION"
for choice; do # each becomes --build-arg NAME=VALUE, at the end of the list
  shift
  set -- "$@" --build-arg "$choice"
done
if [ "$ENGINE" = apptainer ]; then
  exec apptainer build "$@" "$sif" image.def
fi
exec "$ENGINE" build "$@" -t "$full_name" .

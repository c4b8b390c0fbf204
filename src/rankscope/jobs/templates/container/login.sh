#!/bin/sh
# Log in to REGISTRY, before ./push.sh. For Amazon's ECR the password comes from the aws program, and
# ./login.sh --create also creates the image's repository, which ECR does not do by itself.
. "$(dirname "$0")/common.sh"
if [ -z "$REGISTRY" ]; then
  echo "REGISTRY in .env is empty: set it to the registry to push to" >&2
  exit 2
fi
host=${REGISTRY%%/*}

login() {
  if [ "$ENGINE" = apptainer ]; then
    apptainer registry login "$@" "oras://$host"
  else
    "$ENGINE" login "$@" "$host"
  fi
}

case $host in
  *.dkr.ecr.*.amazonaws.com | *.dkr.ecr.*.amazonaws.com.cn) ;;
  *)
    login # asks for the name and the password
    exit
    ;;
esac
region=${host#*.dkr.ecr.}
region=${region%%.*}
if ! command -v aws >/dev/null; then
  echo "aws is not on PATH: $host gives passwords only to it" >&2
  exit 1
fi
if ! password=$(aws ecr get-login-password --region "$region"); then
  echo "aws has no valid login for $host: run 'aws sso login' or 'aws configure', or set AWS_PROFILE, and try again" >&2
  exit 1
fi
printf '%s\n' "$password" | login --username AWS --password-stdin
if [ "${1:-}" = --create ]; then
  name=${full_name#"$host"/}
  name=${name%":$TAG"}
  if ! aws ecr describe-repositories --region "$region" --repository-names "$name" >/dev/null 2>&1; then
    aws ecr create-repository --region "$region" --repository-name "$name" >/dev/null
    echo "Created the repository $name in $region"
  fi
fi

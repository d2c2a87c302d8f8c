# Written by scripts/write_infrastructure.py from src/trainyard/infrastructure/resources.py. Do not edit.
#
#   module "trainyard" {
#     source  = "./infrastructure/terraform"
#     subject = ["repo:OWNER/REPO:environment:images"]
#   }

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.60"
    }
  }
}

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

variable "project_name" {
  description = "the CodeBuild project, and the beginning of the name of everything else"
  type        = string
  default     = "trainyard"

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,25}$", var.project_name))
    error_message = "project_name: the CodeBuild project, and the beginning of the name of everything else."
  }
}

variable "ecr_repository" {
  description = "the ECR repository of the images; NAME-cache holds the layer cache"
  type        = string
  default     = "trainyard"

  validation {
    condition     = can(regex("^[a-z0-9]+([._-][a-z0-9]+)*(/[a-z0-9]+([._-][a-z0-9]+)*)*$", var.ecr_repository))
    error_message = "ecr_repository: the ECR repository of the images; NAME-cache holds the layer cache."
  }
}

variable "tag_mutability" {
  description = "IMMUTABLE: a tag always names the same image; MUTABLE: a tag such as latest may move"
  type        = string
  default     = "IMMUTABLE"

  validation {
    condition     = can(regex("^(IM)?MUTABLE$", var.tag_mutability))
    error_message = "tag_mutability: IMMUTABLE: a tag always names the same image; MUTABLE: a tag such as latest may move."
  }
}

variable "compute_type" {
  description = "the size of the build machine; SMALL has too little disk for a training image"
  type        = string
  default     = "BUILD_GENERAL1_LARGE"

  validation {
    condition     = can(regex("^BUILD_GENERAL1_(MEDIUM|LARGE|XLARGE|2XLARGE)$", var.compute_type))
    error_message = "compute_type: the size of the build machine; SMALL has too little disk for a training image."
  }
}

variable "timeout_minutes" {
  description = "of a build"
  type        = number
  default     = 120

  validation {
    condition     = var.timeout_minutes >= 5 && var.timeout_minutes <= 2160
    error_message = "timeout_minutes: of a build."
  }
}

variable "log_days" {
  description = "how long logs are kept"
  type        = number
  default     = 30

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731], var.log_days)
    error_message = "log_days: how long logs are kept."
  }
}

variable "subject" {
  description = "the subjects of GitHub's jobs that may assume the role, such as repo:OWNER/REPO:environment:NAME"
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for each in var.subject : can(regex("^repo:[^*?\\s,]+:(environment|ref):[^*?\\s,]+$", each))])
    error_message = "subject: the subjects of GitHub's jobs that may assume the role, such as repo:OWNER/REPO:environment:NAME."
  }
}

variable "create_provider" {
  description = "make GitHub's OIDC provider; an account has one, and another stack may have made it"
  type        = bool
  default     = true
}

variable "cluster" {
  description = "the EKS cluster in which jobs of GitHub Actions start training"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([A-Za-z0-9][A-Za-z0-9_-]{0,99})?$", var.cluster))
    error_message = "cluster: the EKS cluster in which jobs of GitHub Actions start training."
  }
}

variable "webhook_repository" {
  description = "OWNER/REPO whose pushes to main build by themselves; CodeBuild must be connected to GitHub"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([A-Za-z0-9-]{1,39}/[A-Za-z0-9._-]{1,100})?$", var.webhook_repository))
    error_message = "webhook_repository: OWNER/REPO whose pushes to main build by themselves; CodeBuild must be connected to GitHub."
  }
}

locals {
  account        = data.aws_caller_identity.current.account_id
  partition      = data.aws_partition.current.partition
  region         = data.aws_region.current.id
  trusts_github  = length(var.subject) > 0
  makes_provider = length(var.subject) > 0 && var.create_provider
  uses_cluster   = length(var.subject) > 0 && var.cluster != ""
  uses_webhook   = var.webhook_repository != ""
}

# the images; every push is scanned
resource "aws_ecr_repository" "image_repository" {
  name                 = var.ecr_repository
  image_tag_mutability = var.tag_mutability

  image_scanning_configuration {
    scan_on_push = true
  }

  encryption_configuration {
    encryption_type = "AES256"
  }
}

resource "aws_ecr_lifecycle_policy" "image_repository" {
  repository = aws_ecr_repository.image_repository.name
  policy = jsonencode({
    rules = [
      {
        rulePriority = 1
        description  = "untagged images go after 14 days"
        selection = {
          tagStatus   = "untagged"
          countType   = "sinceImagePushed"
          countUnit   = "days"
          countNumber = 14
        }
        action = {
          type = "expire"
        }
      },
      {
        rulePriority = 2
        description  = "the newest 200 images stay"
        selection = {
          tagStatus   = "any"
          countType   = "imageCountMoreThan"
          countNumber = 200
        }
        action = {
          type = "expire"
        }
      },
    ]
  })
}

# the layer cache of buildx, whose only tag every build replaces
resource "aws_ecr_repository" "cache_repository" {
  name                 = "${var.ecr_repository}-cache"
  image_tag_mutability = "MUTABLE"

  image_scanning_configuration {
    scan_on_push = false
  }

  encryption_configuration {
    encryption_type = "AES256"
  }
}

resource "aws_ecr_lifecycle_policy" "cache_repository" {
  repository = aws_ecr_repository.cache_repository.name
  policy = jsonencode({
    rules = [
      {
        rulePriority = 1
        description  = "what was not built for 30 days goes"
        selection = {
          tagStatus   = "any"
          countType   = "sinceImagePushed"
          countUnit   = "days"
          countNumber = 30
        }
        action = {
          type = "expire"
        }
      },
    ]
  })
}

# sources of builds: one archive per content
resource "aws_s3_bucket" "source_bucket" {
  bucket = "${var.project_name}-source-${local.account}-${local.region}"
}

resource "aws_s3_bucket_versioning" "source_bucket" {
  bucket = aws_s3_bucket.source_bucket.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "source_bucket" {
  bucket = aws_s3_bucket.source_bucket.id

  rule {
    bucket_key_enabled = false

    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_public_access_block" "source_bucket" {
  bucket                  = aws_s3_bucket.source_bucket.id
  block_public_acls       = true
  ignore_public_acls      = true
  block_public_policy     = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "source_bucket" {
  bucket = aws_s3_bucket.source_bucket.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "source_bucket" {
  bucket = aws_s3_bucket.source_bucket.id

  rule {
    id     = "abort-incomplete-uploads"
    status = "Enabled"

    filter {
      prefix = ""
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  rule {
    id     = "expire-old-versions"
    status = "Enabled"

    filter {
      prefix = ""
    }

    noncurrent_version_expiration {
      noncurrent_days = 30
    }
  }

  rule {
    id     = "expire-archives"
    status = "Enabled"

    filter {
      prefix = "${var.project_name}/source/"
    }

    expiration {
      days = 90
    }
  }
}

# TLS only
resource "aws_s3_bucket_policy" "source_bucket_policy" {
  bucket = aws_s3_bucket.source_bucket.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource = [
          "arn:${local.partition}:s3:::${var.project_name}-source-${local.account}-${local.region}",
          "arn:${local.partition}:s3:::${var.project_name}-source-${local.account}-${local.region}/*",
        ]
        Condition = {
          Bool = {
            "aws:SecureTransport" = "false"
          }
        }
      },
    ]
  })
}

# reports and records of builds
resource "aws_s3_bucket" "artifact_bucket" {
  bucket = "${var.project_name}-artifacts-${local.account}-${local.region}"
}

resource "aws_s3_bucket_versioning" "artifact_bucket" {
  bucket = aws_s3_bucket.artifact_bucket.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "artifact_bucket" {
  bucket = aws_s3_bucket.artifact_bucket.id

  rule {
    bucket_key_enabled = false

    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_public_access_block" "artifact_bucket" {
  bucket                  = aws_s3_bucket.artifact_bucket.id
  block_public_acls       = true
  ignore_public_acls      = true
  block_public_policy     = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "artifact_bucket" {
  bucket = aws_s3_bucket.artifact_bucket.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "artifact_bucket" {
  bucket = aws_s3_bucket.artifact_bucket.id

  rule {
    id     = "abort-incomplete-uploads"
    status = "Enabled"

    filter {
      prefix = ""
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  rule {
    id     = "expire-old-versions"
    status = "Enabled"

    filter {
      prefix = ""
    }

    noncurrent_version_expiration {
      noncurrent_days = 30
    }
  }
}

# TLS only
resource "aws_s3_bucket_policy" "artifact_bucket_policy" {
  bucket = aws_s3_bucket.artifact_bucket.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource = [
          "arn:${local.partition}:s3:::${var.project_name}-artifacts-${local.account}-${local.region}",
          "arn:${local.partition}:s3:::${var.project_name}-artifacts-${local.account}-${local.region}/*",
        ]
        Condition = {
          Bool = {
            "aws:SecureTransport" = "false"
          }
        }
      },
    ]
  })
}

# the logs of builds
resource "aws_cloudwatch_log_group" "log_group" {
  name              = "/aws/codebuild/${var.project_name}"
  retention_in_days = var.log_days
}

# the permissions of a build
resource "aws_iam_role" "build_role" {
  name        = "${var.project_name}-build"
  description = "Trainyard: builds, checks and pushes images in CodeBuild"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect = "Allow"
        Principal = {
          Service = "codebuild.amazonaws.com"
        }
        Action = "sts:AssumeRole"
        Condition = {
          StringEquals = {
            "aws:SourceAccount" = local.account
          }
          ArnLike = {
            "aws:SourceArn" = "arn:${local.partition}:codebuild:${local.region}:${local.account}:project/${var.project_name}"
          }
        }
      },
    ]
  })
}

resource "aws_iam_role_policy" "build_role" {
  name = "build"
  role = aws_iam_role.build_role.name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "WriteTheBuildLog"
        Effect = "Allow"
        Action = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = [
          "arn:${local.partition}:logs:${local.region}:${local.account}:log-group:/aws/codebuild/${var.project_name}:*",
        ]
      },
      {
        Sid    = "ReadTheSource"
        Effect = "Allow"
        Action = ["s3:GetObject", "s3:GetObjectVersion"]
        Resource = [
          "arn:${local.partition}:s3:::${var.project_name}-source-${local.account}-${local.region}/${var.project_name}/source/*",
        ]
      },
      {
        Sid    = "FindTheBuckets"
        Effect = "Allow"
        Action = ["s3:GetBucketLocation", "s3:GetBucketAcl"]
        Resource = [
          "arn:${local.partition}:s3:::${var.project_name}-source-${local.account}-${local.region}",
          "arn:${local.partition}:s3:::${var.project_name}-artifacts-${local.account}-${local.region}",
        ]
      },
      {
        Sid    = "KeepArtifacts"
        Effect = "Allow"
        Action = ["s3:PutObject"]
        Resource = [
          "arn:${local.partition}:s3:::${var.project_name}-artifacts-${local.account}-${local.region}/*",
        ]
      },
      {
        Sid    = "KeepReports"
        Effect = "Allow"
        Action = [
          "codebuild:CreateReportGroup",
          "codebuild:CreateReport",
          "codebuild:UpdateReport",
          "codebuild:BatchPutTestCases",
        ]
        Resource = [
          "arn:${local.partition}:codebuild:${local.region}:${local.account}:report-group/${var.project_name}-*",
        ]
      },
      {
        Sid      = "LogInToTheRegistry"
        Effect   = "Allow"
        Action   = ["ecr:GetAuthorizationToken"]
        Resource = ["*"]
      },
      {
        Sid    = "PullImagesAndCache"
        Effect = "Allow"
        Action = [
          "ecr:BatchGetImage",
          "ecr:GetDownloadUrlForLayer",
          "ecr:BatchCheckLayerAvailability",
        ]
        Resource = [
          "arn:${local.partition}:ecr:${local.region}:${local.account}:repository/${var.ecr_repository}",
          "arn:${local.partition}:ecr:${local.region}:${local.account}:repository/${var.ecr_repository}-cache",
        ]
      },
      {
        Sid    = "PushImagesAndCache"
        Effect = "Allow"
        Action = [
          "ecr:InitiateLayerUpload",
          "ecr:UploadLayerPart",
          "ecr:CompleteLayerUpload",
          "ecr:PutImage",
        ]
        Resource = [
          "arn:${local.partition}:ecr:${local.region}:${local.account}:repository/${var.ecr_repository}",
          "arn:${local.partition}:ecr:${local.region}:${local.account}:repository/${var.ecr_repository}-cache",
        ]
      },
      {
        Sid    = "ReadWhatWasPushed"
        Effect = "Allow"
        Action = ["ecr:DescribeRepositories", "ecr:DescribeImages", "ecr:DescribeImageScanFindings"]
        Resource = [
          "arn:${local.partition}:ecr:${local.region}:${local.account}:repository/${var.ecr_repository}",
        ]
      },
    ]
  })
}

# the builds: privileged, because building an image in CodeBuild needs a Docker daemon
resource "aws_codebuild_project" "builds" {
  name           = var.project_name
  description    = "Trainyard: builds, checks and pushes images"
  service_role   = aws_iam_role.build_role.arn
  build_timeout  = var.timeout_minutes
  queued_timeout = 480

  source {
    type      = local.uses_webhook ? "GITHUB" : "S3"
    location  = local.uses_webhook ? "https://github.com/${var.webhook_repository}.git" : "${var.project_name}-source-${local.account}-${local.region}/${var.project_name}/source/none.zip"
    buildspec = "buildspec.yml"
  }

  artifacts {
    type           = "S3"
    location       = aws_s3_bucket.artifact_bucket.id
    path           = "builds"
    namespace_type = "BUILD_ID"
    packaging      = "ZIP"
    name           = "records.zip"
  }

  environment {
    type            = "LINUX_CONTAINER"
    image           = "aws/codebuild/standard:7.0"
    compute_type    = var.compute_type
    privileged_mode = true

    environment_variable {
      name  = "ECR_REPOSITORY"
      type  = "PLAINTEXT"
      value = var.ecr_repository
    }

    environment_variable {
      name  = "TASK"
      type  = "PLAINTEXT"
      value = local.uses_webhook ? "image" : "train"
    }
  }

  cache {
    type  = "LOCAL"
    modes = ["LOCAL_DOCKER_LAYER_CACHE", "LOCAL_CUSTOM_CACHE"]
  }

  logs_config {
    cloudwatch_logs {
      status     = "ENABLED"
      group_name = aws_cloudwatch_log_group.log_group.name
    }
  }
}

resource "aws_codebuild_webhook" "builds" {
  count        = local.uses_webhook ? 1 : 0
  project_name = aws_codebuild_project.builds.name

  filter_group {
    filter {
      type    = "EVENT"
      pattern = "PUSH"
    }

    filter {
      type    = "HEAD_REF"
      pattern = "^refs/heads/main$"
    }

    filter {
      type    = "FILE_PATH"
      pattern = "^(docker/|requirements-|src/|scripts/)"
    }
  }
}

# lets AWS trust the tokens of GitHub Actions; one per account
resource "aws_iam_openid_connect_provider" "github_provider" {
  count          = local.makes_provider ? 1 : 0
  url            = "https://token.actions.githubusercontent.com"
  client_id_list = ["sts.amazonaws.com"]
}

# the permissions of GitHub Actions jobs, which need no keys
resource "aws_iam_role" "github_role" {
  count       = local.trusts_github ? 1 : 0
  name        = "${var.project_name}-github"
  description = "Trainyard: starts builds from GitHub Actions"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect = "Allow"
        Principal = {
          Federated = "arn:${local.partition}:iam::${local.account}:oidc-provider/token.actions.githubusercontent.com"
        }
        Action = "sts:AssumeRoleWithWebIdentity"
        Condition = {
          StringEquals = {
            "token.actions.githubusercontent.com:aud" = "sts.amazonaws.com"
            "token.actions.githubusercontent.com:sub" = var.subject
          }
        }
      },
    ]
  })
  max_session_duration = 3600
}

resource "aws_iam_role_policy" "github_role" {
  count = local.trusts_github ? 1 : 0
  name  = "github"
  role  = aws_iam_role.github_role[0].name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [for statement in [
      {
        Sid    = "RunBuilds"
        Effect = "Allow"
        Action = ["codebuild:StartBuild", "codebuild:BatchGetBuilds", "codebuild:StopBuild"]
        Resource = [
          "arn:${local.partition}:codebuild:${local.region}:${local.account}:project/${var.project_name}",
        ]
      },
      {
        Sid    = "UploadTheSource"
        Effect = "Allow"
        Action = ["s3:PutObject", "s3:GetObject"]
        Resource = [
          "arn:${local.partition}:s3:::${var.project_name}-source-${local.account}-${local.region}/${var.project_name}/source/*",
        ]
      },
      {
        Sid    = "SeeTheSource"
        Effect = "Allow"
        Action = ["s3:ListBucket"]
        Resource = [
          "arn:${local.partition}:s3:::${var.project_name}-source-${local.account}-${local.region}",
        ]
      },
      {
        Sid    = "ReadTheBuildLog"
        Effect = "Allow"
        Action = ["logs:GetLogEvents"]
        Resource = [
          "arn:${local.partition}:logs:${local.region}:${local.account}:log-group:/aws/codebuild/${var.project_name}:log-stream:*",
        ]
      },
      {
        Sid    = "ReadImages"
        Effect = "Allow"
        Action = ["ecr:DescribeImages"]
        Resource = [
          "arn:${local.partition}:ecr:${local.region}:${local.account}:repository/${var.ecr_repository}",
        ]
      },
      {
        Sid    = "FindTheCluster"
        Effect = "Allow"
        Action = ["eks:DescribeCluster"]
        Resource = [
          "arn:${local.partition}:eks:${local.region}:${local.account}:cluster/${var.cluster}",
        ]
      },
    ] : statement if(statement.Sid != "FindTheCluster" || local.uses_cluster)]
  })
}

# the identity of GitHub's role in the cluster: a member of a group, without an EKS policy
resource "aws_eks_access_entry" "access_entry" {
  count             = local.uses_cluster ? 1 : 0
  cluster_name      = var.cluster
  principal_arn     = aws_iam_role.github_role[0].arn
  type              = "STANDARD"
  kubernetes_groups = ["trainyard-deployers"]
}

output "repository_uri" {
  description = "where images are pushed"
  value       = aws_ecr_repository.image_repository.repository_url
}

output "project_name" {
  description = "for build_image.py"
  value       = aws_codebuild_project.builds.name
}

output "source_bucket" {
  description = "for build_image.py"
  value       = aws_s3_bucket.source_bucket.id
}

output "github_role_arn" {
  description = "the variable TRAINYARD_IMAGE_ROLE of the repository on GitHub"
  value       = one(aws_iam_role.github_role[*].arn)
}
